"""The container recipes run scripts and presets that exist, and both do the same."""

import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import unittest

from support import ROOT

FOLDER = ROOT / "launch" / "container"


def load_generator():
    loader = importlib.machinery.SourceFileLoader("apptainer_definition", str(FOLDER / "apptainer-definition"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


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
            load_generator().definition("FROM a\nVOLUME /data\n")

    @unittest.skipUnless(shutil.which("hadolint"), "no hadolint")
    def test_lint(self):
        subprocess.run(["hadolint", FOLDER / "Dockerfile"], check=True)


if __name__ == "__main__":
    unittest.main()
