"""The container recipes run scripts and presets that exist, and both do the same. The manifest of Kubernetes has fields of
the MPI operator alone, and fits the image."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest

from tests.tools.support import ROOT, load_script

FOLDER = ROOT / "launch" / "container"

# What the manifest may have, after the operator's CustomResourceDefinition.
MPI_JOB = json.loads(pathlib.Path(__file__).with_name("mpijob_fields.json").read_text())


def misfits(value, schema, place="") -> list[str]:
    """Places of the value that the schema does not know."""
    if isinstance(schema, str):
        return [] if type(value).__name__ == schema else [place]
    if "one of" in schema:
        return [] if value in schema["one of"] else [place]
    if not isinstance(value, type(schema)):
        return [place]
    if isinstance(schema, list):
        return [found for item in value for found in misfits(item, schema[0], f"{place}[]")]
    unknown = [f"{place}.{key}" for key in value.keys() - schema.keys()]
    known = [misfits(value[key], schema[key], f"{place}.{key}") for key in value.keys() & schema.keys()]
    return unknown + [found for inner in known for found in inner]


class ContainerTest(unittest.TestCase):
    def setUp(self):
        self.recipe = (FOLDER / "Dockerfile").read_text()
        self.commands = re.findall(r"^RUN (.*)$", self.recipe, re.MULTILINE)

    def test_its_scripts_and_presets_exist(self):
        scripts = [word for command in self.commands for word in command.split() if word.startswith("launch/")]
        self.assertIn("launch/setup", scripts)
        for script in scripts:
            self.assertTrue(os.access(ROOT / script, os.X_OK), script)
        presets = {preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["buildPresets"]}
        named = [name for command in self.commands for name in re.findall(r"--preset (\S+)", command)]
        self.assertTrue(named)
        self.assertLessEqual(set(named), presets)

    def test_apptainer_does_the_same(self):
        text = subprocess.run([FOLDER / "apptainer-definition"], capture_output=True, text=True, check=True).stdout
        self.assertIn("From: " + re.search(r"^FROM (.*)$", self.recipe, re.MULTILINE)[1], text)
        places = [text.index(command) for command in self.commands]
        self.assertEqual(places, sorted(places))

    def test_apptainer_refuses_what_it_does_not_know(self):
        with self.assertRaisesRegex(ValueError, "VOLUME"):
            load_script(FOLDER / "apptainer-definition").definition("FROM a\nVOLUME /data\n")

    def test_manifest(self):
        try:
            import yaml
        except ModuleNotFoundError:
            self.skipTest("no yaml")
        job = yaml.safe_load((FOLDER.parent / "kubernetes" / "mpijob.yaml").read_text())
        self.assertEqual(misfits(job, MPI_JOB), [])
        replicas = job["spec"]["mpiReplicaSpecs"]
        pods = {name: replicas[name]["template"]["spec"] for name in ("Launcher", "Worker")}
        (launcher,), (worker,) = (pods[name]["containers"] for name in pods)
        self.assertEqual(replicas["Launcher"]["replicas"], 1)
        self.assertEqual(launcher["image"], worker["image"])
        self.assertEqual(worker["resources"]["limits"]["nvidia.com/gpu"], job["spec"]["slotsPerWorker"])
        for pod in pods.values():
            mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
            self.assertEqual(mounts.keys(), {volume["name"] for volume in pod["volumes"]})
            self.assertEqual(mounts["shared"], "/shared")
        self.assertEqual(mounts["shm"], "/dev/shm")
        self.assertEqual(worker["command"][0], "/usr/sbin/sshd")
        self.assertIn("openssh-server", self.recipe)
        script, hostfile, *flags = launcher["command"]
        self.assertIn("WORKDIR /opt/ddptrain\n", self.recipe)
        self.assertTrue(os.access(ROOT / script.removeprefix("/opt/ddptrain/"), os.X_OK))
        self.assertEqual(hostfile, "/etc/mpi/hostfile")
        self.assertTrue(flags[flags.index("--checkpoint") + 1].startswith("/shared/"))

    @unittest.skipUnless(shutil.which("hadolint"), "no hadolint")
    def test_lint(self):
        subprocess.run(["hadolint", FOLDER / "Dockerfile"], check=True)
