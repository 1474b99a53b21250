"""What keeps LAPACK from fighting XLA over the cores.

JAX calls the LAPACK inside SciPy from XLA's own thread pool. The OpenBLAS behind it starts a second
pool, and the two wait for each other: factorising a matrix of a few hundred rows becomes many times
slower. One thread for SciPy's library, while XLA keeps all of its own, cures that.
NumPy has a library of its own, which is left alone.

A run does this once in a process when it is set up (`distributed.layout.as_layout`, an
experiment's session); importing the library does not.
"""

import os
from functools import cache

KEEP = "VPNG_KEEP_BLAS_THREADS"
"""Set this environment variable to 1 to leave the threads of SciPy's BLAS as they are."""


@cache
def limit_blas_threads() -> bool:
    """Give SciPy's OpenBLAS one thread, unless the user objects; whether that was done."""
    if os.environ.get(KEEP, "").strip() not in ("", "0"):
        return False
    import scipy.linalg  # noqa: F401  (loads the library)
    from threadpoolctl import ThreadpoolController

    libraries = ThreadpoolController().lib_controllers
    limited = [lib for lib in libraries if "scipy" in (lib.filepath or "").lower()]
    for library in limited:
        library.set_num_threads(1)
    return bool(limited)
