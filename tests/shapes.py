"""Checks of the shapes that signatures state, while tests run; elsewhere nothing checks them."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import jax
import jaxtyping
from beartype import BeartypeConf, beartype
from jax._src import source_info_util  # noqa: TID251

PACKAGES = ("fragflow.ops", "fragflow.algorithms")

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""a whole number may stand for a float, as type checkers have it"""


def check_shapes() -> None:
    """Has modules of these packages checked that are imported from now on."""
    jaxtyping.install_import_hook(PACKAGES, f"{__name__}.checked")
    # As the functions themselves, what checks them is not where an operation was written.
    source_info_util.register_exclusion("<@beartype")
    source_info_util.register_exclusion(str(Path(jaxtyping.__file__).parent))


@contextmanager
def as_others_write() -> Generator[None]:
    """For code of other libraries in a test with `explicit_promotion`."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
