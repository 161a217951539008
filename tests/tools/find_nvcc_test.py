"""tools/find-nvcc with compilers that only tell their version: which of them it takes, and what it says without one."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop()


class FindNvcc(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def compiler(self, folder: str, version: str) -> pathlib.Path:
        path = self.root / folder / "nvcc"
        path.parent.mkdir(parents=True)
        path.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {version}, V{version}.1"\n')
        path.chmod(0o755)
        return path

    def find(self, path: str = "", cudacxx: str = ""):
        environment = {"PATH": f"{path}:/usr/bin:/bin" if path else "/usr/bin:/bin", "CUDACXX": cudacxx}
        done = subprocess.run(
            [PROGRAM, str(self.root)], env=os.environ | environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout.strip()

    def test_takes_the_first_that_is_new_enough(self):
        old = self.compiler("cuda/bin", "12.4")
        new = self.compiler("cuda-13.0/bin", "13.0")
        own = self.compiler("own", "14.1")
        self.assertEqual(self.find(), (0, str(new)))
        self.assertEqual(self.find(path=str(old.parent)), (0, str(new)))
        self.assertEqual(self.find(path=str(own.parent)), (0, str(own)))
        self.assertEqual(self.find(path=str(new.parent), cudacxx=str(own)), (0, str(own)))
        self.assertEqual(self.find(cudacxx=str(old)), (0, str(new)))

    def test_says_what_there_is(self):
        status, words = self.find()
        self.assertEqual(status, 1)
        self.assertIn("needs nvcc 13 or newer", words)
        self.assertIn("none", words)
        old = self.compiler("cuda/bin", "12.4")
        self.assertEqual(self.find(), (1, f"needs nvcc 13 or newer; here is {old} (12.4)"))


if __name__ == "__main__":
    unittest.main()
