"""The same for asyncio: every call is awaited, and cancelling it ends the work.

    import asyncio, pando.aio

    async def main():
        async with pando.aio.Client() as p:
            t = await p.template("pyagent")
            async with await t.fork(100) as cells:
                print(await asyncio.gather(*(c.eval("6*7") for c in cells)))

    asyncio.run(main())
"""

from ._async.client import Client
from ._async.process import Connection, Process
from ._async.things import Cell, Cells, Run, Template

__all__ = ["Client", "Cell", "Cells", "Template", "Run", "Process", "Connection"]
