"""Checks of the shapes that signatures state, while tests run; elsewhere nothing checks them."""

import ast
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import jax
import jaxtyping
from beartype import BeartypeConf, beartype
from jax._src import source_info_util  # noqa: TID251
from jaxtyping._import_hook import JaxtypingTransformer

PACKAGES = ("fragflow.ops", "fragflow.algorithms")

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""a whole number may stand for a float, as type checkers have it"""


def _of_functions_alone(self: JaxtypingTransformer, node: ast.ClassDef) -> ast.ClassDef:
    """Leaves the class itself unchecked: hyperparameters are checked by the algorithms."""
    self._parents.append(node)
    self.generic_visit(node)
    self._parents.pop()
    return node


def check_shapes() -> None:
    """Has functions of these packages checked that are imported from now on."""
    JaxtypingTransformer.visit_ClassDef = _of_functions_alone
    jaxtyping.install_import_hook(PACKAGES, f"{__name__}.checked")
    # As the functions themselves, what checks them is not where an operation was written.
    source_info_util.register_exclusion("<@beartype")
    source_info_util.register_exclusion(str(Path(jaxtyping.__file__).parent))


@contextmanager
def as_others_write() -> Generator[None]:
    """For code of other libraries in a test with `explicit_promotion`."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
