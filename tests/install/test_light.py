"""What `pip install` of the wheel brings, without extras: little, and enough to train."""

from pathlib import Path

import pytest

from install.fresh import Fresh, constraints, run, wheel

pytestmark = pytest.mark.timeout(900)  # it installs most of a gigabyte

MAX_PACKAGES = 25
MAX_MEGABYTES = 650
NOT_NEEDED = ("PIL", "flax", "gymnax", "networkx", "pandas", "matplotlib", "tensorstore")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    here = tmp_path_factory.mktemp("light")
    made = Fresh(here / "venv")
    made.install("-c", constraints(here / "constraints.txt"), wheel(here / "wheel"))
    return made


def test_few_packages_and_megabytes(fresh: Fresh) -> None:
    packages = fresh.pip("list", "--format", "freeze").stdout.split()
    assert any(package.startswith("fragflow==") for package in packages)
    assert len(packages) <= MAX_PACKAGES, packages
    files = [path for path in fresh.site_packages.rglob("*") if path.is_file()]
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    assert 100 < megabytes <= MAX_MEGABYTES
    assert fresh.pip("check").returncode == 0


def test_it_trains(fresh: Fresh, tmp_path: Path) -> None:
    found = f"[m for m in {NOT_NEEDED!r} if importlib.util.find_spec(m)]"
    assert fresh.python(f"import importlib.util; print({found})") == "[]"
    words = ["train", "ppo", "--env", "CartPole-v1", "--total-steps", "2048", "--run-dir", "run"]
    variables = {"XDG_CACHE_HOME": str(tmp_path)}
    done = run(fresh.bin / "fragflow", *words, cwd=tmp_path, variables=variables)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "weights.safetensors").exists()


@pytest.mark.parametrize(
    ("extra", "code"),
    {
        "flax": "import fragflow.ops.networks.nnx",
        "draw": "from pathlib import Path; from fragflow.tools.experiment import gif; "
        "from fragflow.tools.inputs.resolve import find_environment; "
        "gif.check_drawable(find_environment('Tag', {}), Path('a.gif'))",
    }.items(),
)
def test_what_needs_an_extra_says_which(fresh: Fresh, extra: str, code: str) -> None:
    done = run(fresh.bin / "python", "-c", code)
    assert done.returncode == 1
    assert f"pip install 'fragflow[{extra}]'" in done.stderr.splitlines()[-1]
