import json
import subprocess
import sys
import unittest
from typing import Any

from ddptools.nccl.report import ineffective_settings, log_json, log_text
from tests.tools.nccl.nccl_log_test import parse, recorded
from tests.tools.support import ROOT

RING = "NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"
SYMMETRIC = "NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4\n"
EFFECTIVE = "effective"


def text_of(log: str) -> str:
    return log_text(parse(log), [])


def why(name: str, lines: str, nvlink: bool = False) -> str:
    """Why a setting has no effect, by the log of one node with 2 ranks to which lines are added."""
    log = parse(f"NCCL INFO comm 0x5 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n{lines}")
    return {each["name"]: each["why"] for each in ineffective_settings(log, {}, nvlink)}.get(name, EFFECTIVE)


def set_to(name: str, value: str) -> str:
    return f"NCCL INFO {name} set by environment to {value}\n"


class TextTest(unittest.TestCase):
    def test_rings_and_trees(self) -> None:
        text = log_text(recorded("a100_1x4_rings.log"), [])
        self.assertIn("  0, 6  0 -> 1 -> 2 -> 3 -> 0\n", text)
        self.assertIn("  23    0 -> 3 -> 2 -> 1 -> 0\n", text)
        two_nodes, four_nodes = (log_text(recorded(f"a100_{name}_trees.log"), []) for name in ("2x2", "4x1"))
        for text, line in ((two_nodes, "  0  0 (1, 2 (3))\n"), (two_nodes, "  1  2 (3, 0 (1))\n"),
                           (four_nodes, "  0  0 (2 (1, 3))\n"), (four_nodes, "  1  3 (1 (2, 0))\n")):  # fmt: skip
            self.assertIn(line, text)

    def test_trees_of_some_ranks_and_damaged_ones(self) -> None:
        def tree(*nodes: str) -> str:
            return text_of("".join(f"NCCL INFO Trees [0] {node}\n" for node in nodes)).split("Trees")[1].split("\n")[1]

        self.assertEqual(tree("3/-1/-1->1->0"), "  0  0 (1 (3))")  # of rank 1 alone
        self.assertEqual(tree("1/-1/-1->0->-1", "3/-1/-1->2->-1"), "  0  0 (1); 2 (3)")
        self.assertEqual(tree("1/-1/-1->0->1", "0/-1/-1->1->0"), "  0  0 (1)")  # a circle
        self.assertEqual(tree("1/1/-1->0->-1"), "  0  0 (1)")
        deep = tree(*(f"{rank + 1}/-1/-1->{rank}->{rank - 1}" for rank in range(3000)))
        self.assertTrue(deep.endswith("2999 (3000" + ")" * 3000))

    def test_transports_and_what_could_not_be_read(self) -> None:
        text = log_text(recorded("a100_p2p_level_1.log"), [])
        for line in ("  0     1   P2P/IPC/read  0, 4-5, 22-23\n", "  1     0   P2P/IPC/read  0-10, 21-23\n"):
            self.assertIn(line, text)
        self.assertIn("NCCL_P2P_LEVEL  PIX", text)
        self.assertIn("1 line could not be read", text_of("NCCL INFO Channel 00/0 : 0[0] -> \n"))
        self.assertIn("Nothing of NCCL was found", text_of("Epoch 1/1\n"))

    def test_another_choice_for_a_size_is_no_sign_of_another_communicator(self) -> None:
        text = text_of(RING + RING.replace("RING", "TREE"))
        self.assertIn("\n1 line chooses another algorithm, protocol or number of channels for the same collective and size.", text)
        self.assertNotIn("communicators", text)
        self.assertIn("communicators or runs. The first one is shown.", log_text(recorded("two_communicators_made_up.log"), []))

    def test_nodes_and_network(self) -> None:
        text = log_text(recorded("two_nodes_ib.log"), [])
        for part in ("node1  0-1", "node2  2-3", "GPUDirect RDMA", "1 of 2 connections over the network",
                     "mlx5_1:1/IB"):  # fmt: skip
            self.assertIn(part, text)


class JsonTest(unittest.TestCase):
    def test_schema_of_the_documentation(self) -> None:
        nccl = log_json(recorded("a100_2x2_trees.log"), [{"name": "NCCL_X", "value": "1", "why": "because"}])
        self.assertEqual(nccl["ineffective"][0]["why"], "because")
        rings = log_json(recorded("a100_1x4_rings.log"), [])["rings"]
        self.assertEqual((len(rings), rings[1], rings[3]), (24, [0, 1, 3, 2], None))
        transports = log_json(recorded("v100_pair_1_7_shm.log"), [])["transports"]
        self.assertEqual(transports[0], {"from": 0, "to": 1, "channel": 0, "via": "SHM"})
        nccl = log_json(recorded("two_nodes_ib.log"), [])
        self.assertEqual(nccl["ranks_by_node"][1], {"host": "node2", "ranks": [2, 3]})
        self.assertTrue(nccl["network"]["gpu_direct_used"])


class IneffectiveTest(unittest.TestCase):
    def test_p2p_level(self) -> None:
        pix = set_to("NCCL_P2P_LEVEL", "PIX")
        self.assertIn("NVLink", why("NCCL_P2P_LEVEL", pix, nvlink=True))
        self.assertIn("NVLink", why("NCCL_P2P_LEVEL", f"{pix}NCCL INFO + NVL[1.0] - NVS/0\n"))
        self.assertEqual(why("NCCL_P2P_LEVEL", pix), EFFECTIVE)
        for level in ("LOC", "0"):
            self.assertEqual(why("NCCL_P2P_LEVEL", set_to("NCCL_P2P_LEVEL", level), nvlink=True), EFFECTIVE)
        loc = set_to("NCCL_P2P_LEVEL", "LOC")
        nodes = parse(f"NCCL INFO comm 0x5 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n{loc}")
        self.assertIn("share a node", ineffective_settings(nodes, {}, False)[0]["why"])
        self.assertIn("NCCL_P2P_DISABLE", why("NCCL_P2P_LEVEL", loc + set_to("NCCL_P2P_DISABLE", "1.")))

    def test_algorithms_and_what_symmetric_kernels_do_not_use(self) -> None:
        tree, ring = set_to("NCCL_ALGO", "Tree"), set_to("NCCL_ALGO", "ring")
        self.assertIn("Ring", why("NCCL_ALGO", tree + RING))
        self.assertIn("symmetric", why("NCCL_ALGO", ring + SYMMETRIC))
        self.assertEqual(why("NCCL_ALGO", ring + RING), EFFECTIVE)
        self.assertEqual(why("NCCL_ALGO", tree), EFFECTIVE)
        for name in ("NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"):
            self.assertIn("symmetric", why(name, set_to(name, "1.") + SYMMETRIC))
            self.assertEqual(why(name, set_to(name, "1.") + RING), EFFECTIVE)

    def test_network_settings_within_a_node(self) -> None:
        lines = "NCCL INFO NCCL_IB_HCA set to mlx5_0\n" + set_to("NCCL_SOCKET_IFNAME", "lo")
        self.assertIn("network", why("NCCL_IB_HCA", lines))
        self.assertEqual(why("NCCL_SOCKET_IFNAME", lines), EFFECTIVE)  # the ranks find each other through it
        net = "NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
        self.assertEqual(why("NCCL_IB_HCA", lines + net), EFFECTIVE)

    def test_variables_that_the_log_never_mentions(self) -> None:
        log = parse(set_to("NCCL_CROSS_NICS", "1."))
        environment = {"NCCL_P2P_LEVLE": "LOC", "NCCL_DEBUG": "INFO", "NCCL_CROSS_NICS": "1"}
        (setting,) = ineffective_settings(log, environment, False)
        self.assertEqual((setting["name"], setting["value"]), ("NCCL_P2P_LEVLE", "LOC"))


class ProgramTest(unittest.TestCase):
    def report(self, log: bytes, *arguments: str) -> dict[str, Any]:
        command = [sys.executable, str(ROOT / "launch" / "ddptools" / "nccl" / "report.py"), *arguments]
        return json.loads(subprocess.run(command, input=log, capture_output=True, check=True).stdout)

    def test_what_ddptopo_gives_it(self) -> None:
        log = "NCCL INFO NCCL_X set by environment to é\xff\nNCCL INFO NCCL_OURS set by environment to x\n"
        found = self.report(
            log.encode("latin-1").replace(b"\xe9", "é".encode()),
            "--nvlink", "--environment", json.dumps({"NCCL_Y": "é"}, ensure_ascii=False), "--unmentioned", "NCCL_OURS",
        )  # fmt: skip
        self.assertTrue(found["found"])
        self.assertEqual(found["nccl"]["environment"], {"NCCL_X": "é\ufffd"})
        self.assertIn("  NCCL_X  é\ufffd\n", found["text"])
        self.assertEqual(found["nccl"]["ineffective"][0]["value"], "é")
        self.assertFalse(self.report(b"Epoch 1/4\n\xff\n")["found"])
