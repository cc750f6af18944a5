"""`pip install` works whether or not the kernels in C++ can be built, and has them if they can."""

import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from install.fresh import ROOT, Fresh, constraints, run, wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AGAIN = ("--no-deps", "--force-reinstall")
HERE = (*AGAIN, "--no-build-isolation")
LIBRARY = "src/fragflow/ops/kernels/kernels.so"
TINY = (
    *("train", "ppo", "--env", "gymnasium:CartPole-v1", "--num-envs", "4", "--eval-episodes", "0"),
    *("--rollout-length", "16", "--total-steps", "64"),
)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """With a wheel of fragflow, all that it needs, and what builds others."""
    here = tmp_path_factory.mktemp("builds")
    made = Fresh(here / "venv")
    pins = constraints(here / "constraints.txt")
    made.install("-c", pins, "hatchling", "editables", wheel(here / "wheel"))
    return made


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that git has."""
    copy = tmp_path / "checkout"
    for name in run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0"):
        if name and (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture
def read_only(checkout: Path) -> Iterator[Path]:
    """A checkout that nobody may write to, nor does."""
    before = sorted(checkout.rglob("*"))
    folders = [checkout, *(path for path in before if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    yield checkout
    assert sorted(checkout.rglob("*")) == before  # root may write anywhere
    for folder in folders:
        folder.chmod(0o755)


def absent(fresh: Fresh) -> str:
    """Why there are no kernels, or "None"."""
    return fresh.python("from fragflow.ops.kernels import native; print(native.absent())")


def no_compiler(there: Path) -> Mapping[str, str]:
    return {"PATH": str(there)}


def one_that_fails(there: Path) -> Mapping[str, str]:
    return {"CXX": shutil.which("false") or "/bin/false"}


def one_that_only_says_so(there: Path) -> Mapping[str, str]:
    return {"CXX": shutil.which("true") or "/bin/true"}


def one_that_hangs(there: Path) -> Mapping[str, str]:
    script = there / "compiler"
    script.write_text("#!/bin/sh\nsleep 600 & wait\n")
    script.chmod(0o755)
    return {"CXX": str(script), "FRAGFLOW_COMPILER_SECONDS": "2"}


def test_from_a_wheel(fresh: Fresh) -> None:
    assert absent(fresh) == "None"


def test_from_a_checkout(fresh: Fresh, read_only: Path) -> None:
    fresh.install(*HERE, read_only)
    assert absent(fresh) == "None"


@pytest.mark.parametrize(
    "compiler", [no_compiler, one_that_fails, one_that_only_says_so, one_that_hangs]
)
def test_without_a_compiler_that_works(
    fresh: Fresh, read_only: Path, tmp_path: Path, compiler: Callable[[Path], Mapping[str, str]]
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    done = fresh.install("-v", *HERE, read_only, variables=compiler(there))
    assert "kernels in C++ are left out: " in done.stdout + done.stderr
    assert absent(fresh).startswith("it was not built")
    trained = run(fresh.bin / "fragflow", *TINY, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "discounted_sums by xla (cpp is absent: it was not built" in " ".join(
        trained.stdout.split()
    )


def test_from_an_sdist_in_isolation(fresh: Fresh, checkout: Path, tmp_path: Path) -> None:
    """Built with jaxlib 0.10, whichever the environment has."""
    (checkout / LIBRARY).write_bytes(b"of an editable installation")
    build = ("-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path)
    made = run(fresh.bin / "python", *build, cwd=checkout)
    assert made.returncode == 0, made.stderr
    (sdist,) = tmp_path.glob("fragflow-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "hatch_build.py", "src/fragflow/ops/kernels/kernels.cc"} <= names
    assert not {name for name in names if name.startswith("benchmarks/") or name.endswith(".so")}
    fresh.install(*AGAIN, sdist)
    assert absent(fresh) == "None"


def test_editable(fresh: Fresh, checkout: Path, tmp_path: Path) -> None:
    fresh.install(*HERE, "-e", checkout)
    assert (checkout / LIBRARY).exists()
    assert absent(fresh) == "None"
    fresh.install(*HERE, "-e", checkout, variables=one_that_fails(tmp_path))
    assert not (checkout / LIBRARY).exists()
    assert absent(fresh).startswith("it was not built")
