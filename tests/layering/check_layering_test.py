"""Checks the checker: every rule is broken once in a small tree, and a good tree passes."""

import pathlib
import tempfile
import unittest

from check_layering import violations

GOOD = {
    "core/log_spdlog.cpp": "#include <spdlog/spdlog.h>\n#include \"core/log.h\"\n",
    "storage/store.cpp": "#include <boost/asio.hpp>\n#include \"kernels/backend.h\"\n",
    "api/server.cpp": "#include <boost/beast.hpp>\n#include <httplib.h>\n#include \"actors/requests.h\"\n",
    "actors/gateway.cpp": "#include <caf/all.hpp>\n#include <vector>\n#include \"model/sampler.h\"\n",
    "sparse/basis.cpp": "#include <Eigen/Dense>\n",
    "core/content_hash.cpp": "#include <xxhash.h>\n",
    "kernels/cuda/diff.cu": "#include <cuda_runtime.h>\n#include \"core/ids.h\"\n",
    "tests/core/log_test.cpp": "#include <caf/all.hpp>\n#include \"api/server.h\"\n",
}

# Path, its text, a part of the message.
BAD = [
    ("core/a.h", '#include "kernels/backend.h"', "core must not include kernels"),
    ("sparse/a.cpp", '  #  include "model/sampler.h"', "sparse must not include model"),
    ("actors/a.cpp", '#include "api/server.h"', "actors must not include api"),
    ("model/a.cpp", '#include "sampler.h"', "from the repository root"),
    ("model/b.cpp", '#include "../core/ids.h"', "from the repository root"),
    ("api/a.cpp", "#include <caf/actor.hpp>", "CAF does not belong here"),
    ("actors/b.cpp", "#include <boost/beast/http.hpp>", "Boost.Beast does not belong here"),
    ("storage/a.cpp", "#include <httplib.h>", "cpp-httplib does not belong here"),
    ("model/c.cpp", "#include <boost/asio.hpp>", "Boost.Asio does not belong here"),
    ("core/config.cpp", "#include <spdlog/spdlog.h>", "spdlog does not belong here"),
    ("api/b.cpp", "#include <prometheus/registry.h>", "prometheus-cpp does not belong here"),
    ("model/d.cpp", "#include <Eigen/Dense>", "Eigen does not belong here"),
    ("storage/b.cpp", "#include <xxhash.h>", "xxHash does not belong here"),
    ("kernels/cpu/a.cpp", "#include <cuda_runtime.h>", "CUDA does not belong here"),
    ("kernels/cuda/a.cu", "#include <nlohmann/json.hpp>", "a CUDA source must not include"),
    ("tests/kernels/a.cu", "#include <spdlog/spdlog.h>", "a CUDA source must not include"),
    ("misc/a.cpp", "#include <vector>", "not a folder of the architecture"),
]


class LayeringTest(unittest.TestCase):
    def check(self, files: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            for path, text in files.items():
                file = pathlib.Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text + "\n", encoding="utf-8")
            return violations(pathlib.Path(folder))

    def test_good_tree_passes(self):
        self.assertEqual(self.check(GOOD), [])

    def test_every_rule_is_seen_when_broken(self):
        for path, text, message in BAD:
            with self.subTest(path=path):
                found = self.check({**GOOD, path: text})
                self.assertEqual(len(found), 1, found)
                self.assertIn(message, found[0])
                self.assertTrue(found[0].startswith(path.split("/")[0]))


if __name__ == "__main__":
    unittest.main()
