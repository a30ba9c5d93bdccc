import unittest

from ddptools.plan.memory import memory_fit


def kept(batch: int, recompute: str = "none") -> float:
    """10 GB, and 3 or 1 GB of a sample."""
    return 10e9 + batch * (1e9 if recompute == "block" else 3e9)


class MemoryTest(unittest.TestCase):
    def test_what_fits(self) -> None:
        fit = memory_fit(kept, 10, 40.0, True)
        self.assertTrue(fit.fits)
        self.assertEqual(fit.text(), "40 GB of a GPU's 40 GB, beside what libraries take")

    def test_remedies_are_tried(self) -> None:
        for batch, there, can_recompute, remedies in ((10, 39.0, False, ["--batch 9"]),
                                                      (10, 39.0, True, ["--batch 9", "--recompute"]),
                                                      (10, 15.0, True, ["--batch 1"]),
                                                      (10, 12.5, True, ["--recompute and --batch 2"]),
                                                      (10, 12.5, False, []),
                                                      (10, 9.0, True, [])):  # fmt: skip
            with self.subTest(there=there):
                fit = memory_fit(kept, batch, there, can_recompute)
                self.assertFalse(fit.fits)
                self.assertEqual(fit.remedies, remedies)
                self.assertIn(remedies[0] if remedies else "not even --batch 1 fits", fit.text())
