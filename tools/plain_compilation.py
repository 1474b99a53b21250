"""How the programs of tests and documents, which run once, are compiled: plainly and shared."""

import os

FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_multi_thread_eigen=false",
    "--xla_disable_hlo_passes=while-loop-simplifier,while-loop-constant-sinking,"
    "reshape-mover,simplify-conditional,simplify-sorts,tree_reduction_rewriter",
)
"""Little optimisation, and the cores left to whatever runs beside."""


def environment(folder: str) -> dict[str, str]:
    """Variables for a process that has not made an array yet.

    Args:
        folder: where processes find what others of them have compiled.
    """
    return {
        "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]),
        "JAX_COMPILATION_CACHE_DIR": folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
