import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["mcf.dist.worker", "mcf.dist.world", "mcf.dist.control"])
def test_heartbeats_and_the_head_need_nothing_heavy(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers', 'numpy'}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
