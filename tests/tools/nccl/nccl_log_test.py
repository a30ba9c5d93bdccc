import random
import unittest

from ddptools.nccl.log import UNNAMED_COLLECTIVE, Log, Transport, read_log
from ddptools.nccl.report import log_json
from tests.tools.support import ROOT

LOGS = ROOT / "tests" / "diagnostics" / "logs"

# Made up, of two nodes of two ranks each, as NCCL 2.28 writes it.
TWO_NODES = (LOGS / "two_nodes_made_up.log").read_text()


def parse(text: str) -> Log:
    return read_log(text.splitlines(keepends=True))


def recorded(name: str) -> Log:
    return parse((LOGS / name).read_text("latin-1"))


class ReadLogTest(unittest.TestCase):
    def test_log_of_two_nodes(self) -> None:
        log = parse(TWO_NODES)
        self.assertEqual((log.version, log.ranks, log.ranks_told, log.nodes, log.channels), ("2.28.9", 4, True, 2, 2))
        self.assertEqual((log.nvls_channels, log.has_nvswitch), (0, True))
        self.assertEqual(log.rings, {0: [0, 1, 2, 3], 1: [0, 3, 2, 1]})
        self.assertEqual(log.environment, {"NCCL_ALGO": "Tree", "NCCL_HOSTID": "a", "NCCL_IB_HCA": "mlx5_0",
                                           "NCCL_NVLS_ENABLE": "0"})  # fmt: skip
        self.assertEqual((log.unreadable_lines, log.contradictions), (0, 0))
        self.assertEqual(log.trees[0][0], {"rank": 0, "parent": None, "children": [1, 2]})
        self.assertEqual(log.trees[0][3], {"rank": 3, "parent": 2, "children": []})
        self.assertEqual(log.trees[1][2]["children"], [3, 0])
        self.assertEqual(log.transports, [
            Transport(0, 1, 0, "P2P/CUMEM/read"),
            Transport(0, 1, 1, "SHM/direct/direct"),
            Transport(1, 2, 0, "NET/IB/0(3)/GDRDMA(PCI)/Shared"),
        ])  # fmt: skip
        self.assertEqual(log.choices["AllReduce", 2097152], {"algorithm": "Ring", "protocol": "Simple", "channels": 2})
        self.assertEqual(log.choices["AllGather", 4096], {"algorithm": "Ring", "protocol": "LL", "channels": 1})

    def test_older_versions(self) -> None:
        log = recorded("older_forms_made_up.log")
        self.assertEqual((log.unreadable_lines, log.version, log.ranks, log.nodes, log.channels), (0, "", 2, 0, 2))
        self.assertEqual(log.trees[1][0]["parent"], 1)
        self.assertEqual(log.transports, [
            Transport(0, 1, 0, "P2P/IPC"), Transport(0, 1, 1, "SHM"),
            Transport(1, 0, 0, "NET/IB/1/GDRDMA"), Transport(1, 0, 1, "P2P/indirect/2"),
        ])  # fmt: skip
        log = recorded("nccl_2_18_made_up.log")
        self.assertEqual((log.unreadable_lines, log.contradictions), (0, 0))
        self.assertEqual((log.version, log.ranks, log.channels, log.nvls_channels), ("2.18.3", 4, 2, 1))
        self.assertEqual(log.environment, {"NCCL_MIN_NCHANNELS": "2"})
        self.assertEqual([each.via for each in log.transports], ["P2P/indirect/1", "SHM/CE/direct"])
        log = recorded("nccl_2_21_made_up.log")
        known = {"algorithm": "Ring", "protocol": "Simple", "channels": None}
        self.assertEqual(log.choices[UNNAMED_COLLECTIVE, 1048576], known)
        self.assertEqual(log.choices[UNNAMED_COLLECTIVE, 4096]["algorithm"], "Tree")

    def test_recorded_logs(self) -> None:
        one_node = recorded("a100_1x4_rings.log")  # with lines left out by whoever recorded it
        self.assertEqual((one_node.channels, one_node.ranks, one_node.ranks_told), (24, 4, False))
        self.assertEqual((len(one_node.rings), one_node.rings[2], one_node.rings[23]), (6, [0, 2, 3, 1], [0, 3, 2, 1]))
        self.assertEqual(one_node.unreadable_lines, 0)
        trees = recorded("a100_1x4_trees.log")  # what stands after the ellipses of the recording is missing
        self.assertEqual((len(trees.trees), trees.unreadable_lines, trees.trees[4][1]["children"]), (6, 4, [3]))
        self.assertEqual(recorded("a100_4x1_trees.log").trees[0][2]["children"], [1, 3])
        log = recorded("h200_shared_by_4_ranks.log")
        self.assertEqual((log.version, log.ranks, log.nodes, log.channels), ("2.32.3", 4, 1, 4))
        self.assertEqual((len(log.transports), log.transports[0]), (16, Transport(0, 1, 0, "P2P/CUMEM")))
        self.assertEqual(log.choices["AllReduce", 11120640]["protocol"], "LL128")
        self.assertEqual((log.environment["NCCL_ALGO"], log.unreadable_lines), ("Ring", 0))
        shared_memory, direct = recorded("a100_p2p_level_0.log"), recorded("a100_p2p_level_1.log")
        self.assertEqual([each.via for each in shared_memory.transports], ["SHM"] * 8)
        self.assertEqual({each.via for each in direct.transports}, {"P2P/IPC/read"})
        self.assertEqual((shared_memory.channels, direct.channels), (4, 24))
        self.assertEqual(shared_memory.environment["NCCL_P2P_LEVEL"], "LOC")

    def test_wherever_the_log_ends_nothing_is_told_that_the_whole_log_does_not_tell(self) -> None:
        whole = parse(TWO_NODES)
        for length in range(len(TWO_NODES) + 1):
            log = parse(TWO_NODES[:length])
            self.assertTrue(log.ranks == whole.ranks or not log.ranks_told, length)
            self.assertIn(log.nodes, (0, whole.nodes), length)
            self.assertLessEqual(log.environment.items(), whole.environment.items(), length)
            self.assertTrue(all(whole.rings[channel] == ring for channel, ring in log.rings.items()), length)
            for channel, tree in log.trees.items():
                self.assertTrue(all(whole.trees[channel][rank] == node for rank, node in tree.items()), length)

    def test_rings_of_many_ranks_come_from_their_neighbours(self) -> None:
        """NCCL ends the line of a ring after 127 characters, as many as 28 ranks take."""
        start = "n0:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 40 nNodes 5 localRanks 8 localRank 0 MNNVL 0\n"
        line = "Channel 00/02 :" + "".join(f"{rank:4d}" for rank in range(40))
        start += f"n0:1:2 [0] NCCL INFO {line[:127]}\n"
        said = [f"n{rank // 8}:1:2 [0] NCCL INFO Ring 00 : {(rank + 39) % 40} -> {rank} -> {(rank + 1) % 40}\n"
                for rank in range(40)]  # fmt: skip
        log = parse(start + "".join(said))
        self.assertEqual(log.rings, {0: list(range(40))})
        self.assertEqual((log.unreadable_lines, log.contradictions), (0, 0))
        without_last = start + "".join(said[:-1])
        self.assertEqual(parse(without_last).rings, {})
        circle = "n4:1:2 [0] NCCL INFO Ring 00 : 38 -> 39 -> 20\n"
        self.assertEqual(parse(without_last + circle).rings, {})
        self.assertEqual(parse(start + "".join(said) + circle).contradictions, 1)
        self.assertEqual(parse(f"{without_last}n4:1:2 [0] NCCL INFO Ring 00 : 38 -> 39 -> 0").unreadable_lines, 2)

    def test_network_whose_name_has_a_space(self) -> None:
        log = parse(
            "NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/2/GDRDMA/Shared\n"
            "NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/AWS Libh0:10:13 [0] NCCL INFO Connected rings\n"
        )
        self.assertEqual([each.via for each in log.transports], ["NET/AWS Libfabric/2/GDRDMA/Shared"])
        self.assertEqual(log.unreadable_lines, 1)

    def test_cut_lines_are_counted(self) -> None:
        log = recorded("cut_lines_made_up.log")
        self.assertEqual((list(log.rings), list(log.trees), log.transports), ([0], [0], []))
        self.assertEqual(log.unreadable_lines, 5)

    def test_ranks_that_write_into_one_line(self) -> None:
        log = recorded("two_ranks_in_a_line_made_up.log")
        self.assertEqual(len(log.trees[1]), 2)
        self.assertEqual(log.transports, [Transport(1, 0, 0, "P2P/CUMEM/read")])
        self.assertEqual(log.environment, {})  # where the value ends is anybody's guess
        self.assertEqual((log.unreadable_lines, log.rings[0]), (1, [0, 1]))

    def test_several_communicators_contradict(self) -> None:
        log = recorded("two_communicators_made_up.log")
        self.assertEqual((log.ranks, len(log.rings[0]), log.contradictions), (4, 4, 2))

    def test_transports_are_those_of_the_first_communicator(self) -> None:
        def comm(address: str, ranks: int, rank: int = 0, process: str = "n1:1:1") -> str:
            places = f"rank {rank} nRanks {ranks} nNodes 2 localRanks 1 localRank 0"
            return f"{process} [0] NCCL INFO comm {address} {places} MNNVL 0\n"

        near = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        far = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
        beyond = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 3[0] [send] via NET/IB/0\n"
        for said, expected in (
            (comm("0x1", 4) + near + comm("0x2", 2) + far, ["P2P/CUMEM"]),
            (comm("0x1", 4) + comm("0x2", 2) + near + beyond, ["P2P/CUMEM", "NET/IB/0"]),
            (comm("0x1", 2) + comm("0x2", 4) + near + beyond, ["P2P/CUMEM"]),  # the first one has no rank 3
            (comm("0x1", 4) + comm("0x2", 2) + near + near.replace("P2P/CUMEM", "SHM/direct/direct"), []),
            (comm("0x1", 4) + near + comm("0x3", 4, process="n2:2:2") + far.replace("n1:1:1", "n2:2:2"), ["P2P/CUMEM"]),
        ):
            log = parse(said)
            self.assertEqual([each.via for each in log.transports], expected, said)
            self.assertGreater(log.contradictions, 0)

    def test_gpus_of_one_process_are_in_one_communicator(self) -> None:
        log = parse(
            "h:1:2 [0] NCCL INFO ncclCommInitAll comm 0xa rank 0 nranks 2 cudaDev 0 busId 10 commId 0x7 - Init COMPLETE\n"
            "h:1:3 [1] NCCL INFO [Rank 1] ncclCommInitAll comm 0xb rank 1 nranks 2 cudaDev 1 busId 20 commId 0x7 - Init\n"
            "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer\n"
            "h:1:3 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct\n"
        )
        self.assertEqual((log.ranks, log.ranks_told, log.contradictions), (2, True, 0))
        self.assertEqual([each.via for each in log.transports], ["P2P/direct pointer", "SHM/direct/direct"])

    def test_both_ends_of_a_connection_are_one_transport(self) -> None:
        connection = "[1] NCCL INFO Channel 04/1 : 3[1] -> 0[0]"
        log = parse(
            f"n0:1:1 {connection} [receive] via NET/IB/0/GDRDMA\nn1:2:2 {connection} [send] via NET/IB/1/GDRDMA\n"
        )
        self.assertEqual(log.transports, [Transport(3, 0, 4, "NET/IB/1/GDRDMA")])
        self.assertEqual(log.transports[0].receives_via, "NET/IB/0/GDRDMA")

    def test_versions_behind_marks_of_launchers(self) -> None:
        for mark in ("", "[1,0]<stdout>:", "0: ", "(worker pid=17) "):
            self.assertEqual(parse(f"{mark}NCCL version 2.9.9+cuda11.2\n").version, "2.9.9", mark)
        self.assertEqual(parse("built with NCCL version 2.14.3\n").version, "")

    def test_of_two_choices_for_one_size_the_first_counts(self) -> None:
        log = parse(
            "NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}\n"
            "NCCL INFO AllReduce: 1048576 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..1}\n"
        )
        self.assertEqual(log.choices["AllReduce", 1048576], {"algorithm": "Ring", "protocol": "Simple", "channels": 4})
        self.assertEqual((log.contradictions, log.other_choices), (0, 1))

    def test_numbers_out_of_range_are_unreadable(self) -> None:
        for message in (
            "Channel 99999999999999999999/02 : 0 1", "Channel 4000/4001 : 0 1", "Channel 02/02 : 0 1",
            "Channel 00/02 : 0 0", "Channel 00/02 : -1 0", "Trees [5000] 1/-1/-1->0->-1", "Trees [0] 1/-2/-1->0->-1",
            "comm 0x5 rank 0 nRanks 0 nNodes 1", "AllReduce: -5 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
            "AllReduce: 5 Bytes -> Algo RING proto LL channel{Lo..Hi}={3..1}",
        ):  # fmt: skip
            log = parse(f"NCCL INFO {message}\n")
            self.assertEqual(log.unreadable_lines, 1, message)
            self.assertFalse(log.rings or log.trees or log.choices, message)

    def test_damaged_logs_and_noise_raise_nothing(self) -> None:
        noise = random.Random(7)
        for turn in range(600):
            text = list(TWO_NODES)
            for _ in range(noise.randrange(60)):
                at = noise.randrange(len(text))
                if noise.randrange(4) == 0:
                    del text[at : at + noise.randrange(80)]
                else:
                    text[at] = chr(noise.randrange(256))
            if turn % 20 == 0:
                text += noise.choice("[0 /-") * 100000
            log = parse("".join(text))
            self.assertTrue(all(len(ring) == log.ranks for ring in log.rings.values()))
            log_json(log, [])


def places(local: list[tuple[int, int]], nodes: int) -> str:
    """A line of each rank, in which it says its local rank, and their number."""
    return "".join(
        f"vm:1:2 [0] NCCL INFO comm 0x1 rank {rank} nRanks {len(local)} nNodes {nodes} localRanks {ranks} localRank "
        f"{local_rank} MNNVL 0\n"
        for rank, (local_rank, ranks) in enumerate(local)
    )


class NodesTest(unittest.TestCase):
    def test_ranks_of_nodes(self) -> None:
        log = parse(places([(0, 2), (1, 2), (0, 2), (1, 2)], 2))
        self.assertEqual(log.ranks_by_node, [{"host": None, "ranks": [0, 1]}, {"host": None, "ranks": [2, 3]}])
        said = places([(0, 2), (0, 2), (1, 2), (1, 2)], 2)
        self.assertEqual(parse(said).ranks_by_node, [])
        first, second, third, fourth = said.replace("vm:", "h0:").splitlines(keepends=True)
        log = parse(first + second.replace("h0:", "h1:") + third + fourth.replace("h0:", "h1:"))
        self.assertEqual(log.ranks_by_node, [{"host": "h0", "ranks": [0, 2]}, {"host": "h1", "ranks": [1, 3]}])

    def test_what_the_network_is(self) -> None:
        log = recorded("two_nodes_ib.log")
        self.assertEqual((log.network, log.adapters), ("IB", ["[0]mlx5_0:1/IB", "[1]mlx5_1:1/IB"]))
        self.assertEqual(parse("h:1:2 [0] NCCL INFO Using network AWS Libfabric\n").network, "AWS Libfabric")
