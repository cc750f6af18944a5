"""Every primitive of JAX: drawn by the hunt, or a line that says why not.

Which are drawn is found by drawing. A primitive that is neither made by a function of the catalogue
nor has a reason here fails a test, so that a new release of JAX is looked at.
"""

import gc
from collections.abc import Mapping

from jax.extend import core

COLLECTIVES = "works along a named axis, or along one that vmap has named: it has no rule"
REFERENCES = "reads or writes a reference, which training loops do not have"
DEVICES = "is about where values lie or when they are there, not what they are"
CUDNN = "is a kernel of CUDA, which jax.nn picks on such devices only"
TRANSFORMED = "is opened or gone before a program is analysed"
CALLBACKS = "calls Python: refused where replicas depend on it, and nothing to compute with"
SHAPES = "is about symbolic shapes, with which nothing is traced here"
TYPES = "is about types of JAX's own extensions"


MAKERS_OF_THE_RARE = (
    "hunt.forms.gradient",
    "hunt.forms.pooled",
    "jax.lax.clz",
    "jax.lax.linalg.symmetric_product",
    "jax.lax.rng_uniform",
    "jax.scipy.linalg.eigh_tridiagonal",
    "jax.scipy.linalg.hessenberg",
    "jax.scipy.linalg.qr_multiply",
    "jax.scipy.sparse.linalg.gmres",
)
"""functions to begin with where few draws were not enough: they seldom take what is drawn"""


def _each(names: str, reason: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


NOT_DRAWN: Mapping[str, str] = {
    **_each(
        """
        all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start
        all_gather_start all_to_all all_to_all_done all_to_all_start axis_index pbroadcast
        pbroadcast_done pbroadcast_dynamic pbroadcast_start pmax pmin ppermute ppermute_done
        ppermute_start precv preduced psend psum psum_done psum_invariant psum_invariant_start
        psum_start pvary ragged_all_to_all reduce_scatter reduce_scatter_done reduce_scatter_start
        reduced_vary_cast reduced_vary_cast_p unreduced_pmax unreduced_pmin unreduced_psum
        unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start
        vary_unreduced_cast vary_unreduced_cast_p shard_map
        """,
        COLLECTIVES,
    ),
    **_each(
        """
        accum_grad_in_ref addupdate box_get box_set empty_ref free_ref freeze get log_extend
        log_read new_box new_log new_ref run_state swap core_map
        """,
        REFERENCES,
    ),
    **_each(
        """
        after_all create_token inspect_sharding layout_constraint pin relayout reshard
        sharding_constraint stage tie unpin with_memory_space_constraint dce_sink
        global_array_to_host_local_array host_local_array_to_global_array
        """,
        DEVICES,
    ),
    **_each(
        """
        cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper
        dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper
        dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
        dot_product_attention_fwd dot_product_attention_fwd_wrapper scaled_matmul
        scaled_matmul_wrapper scaled_dot
        """,
        CUDNN,
    ),
    **_each(
        """
        call call_exported call_hi_primitive call_hi_primitive_linearized closed_call composite
        create_linear custom_jvp_call_jaxpr custom_lin custom_partitioning custom_vmap_call
        eval_jaxpr linear_call xla_metadata_call xla_metadata_value remat_opt zeros_like unreachable
        """,
        TRANSFORMED,
    ),
    **_each("debug_callback debug_print ffi_call io_callback pure_callback check", CALLBACKS),
    **_each("dim_as_value dimension_size shape_assertion", SHAPES),
    **_each("from_edtype to_edtype empty2 broadcast_to iota_2x32_shape", TYPES),
    **_each(
        "philox2x32 philox4x32 threefry2x32 threefry4x32",
        "makes random bits inside other primitives, or for keys of another kind than the default",
    ),
    **_each("host_call host_program", "is an environment on the host, answered row by row"),
    **_each(
        "geqp3 lu_pivots_to_permutation",
        "is linear algebra without a rule: JAX's batching rule judges it, as it does qr",
    ),
    **_each(
        "select_and_scatter select_and_gather_add",
        "is made by derivatives of derivatives; it has no rule and is refused",
    ),
    **_each("ragged_dot_general", "is made by ragged products; it has no rule and is refused"),
    **_each("eq_to le_to lt_to", "orders values inside sort only"),
    **_each("polynomial", "is made inside lowerings only"),
}
"""by primitive, why the generator has no case for it"""
DRAWN_BY_SOME = frozenset(("call_hi_primitive", "polynomial", "le_to", "lt_to"))
"""of these, what the functions of some versions of JAX make"""


def all_primitives() -> set[str]:
    """Names of all primitives that JAX has here, as far as the public modules bring them."""
    own = {"all_reduce", "host_call", "host_program"}  # and those of flax, where it is imported
    own |= {"get_variable", "new_variable", "set_variable"}
    names = {p.name for p in gc.get_objects() if isinstance(p, core.Primitive)} - own
    # Derivatives of other primitives, made as they are needed.
    return {name for name in names if not name.startswith("vjp_node[")}
