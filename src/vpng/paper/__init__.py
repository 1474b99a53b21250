"""The paper as an application of the library: experiments, data sets, report, command line.

It needs the extra `paper` and says so when it is missing.
"""

from vpng.extras import Extra, require

require("vpng.paper", Extra.PAPER)
