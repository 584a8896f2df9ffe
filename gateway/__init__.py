"""
The gateway that puts people, limits and a bill in front of vLLM.

The layout is the path of a request: `api` receives it, `pipeline` tells its story, `auth`, `admission`, `routing`,
`relay` and `ledger` are the stages, `store` is what Postgres and Redis remember.
"""

from importlib.metadata import version

__version__ = version("weighbridge")
