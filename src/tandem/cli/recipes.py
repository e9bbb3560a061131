"""``tandem recipes``: the catalogue on the command line."""

from __future__ import annotations

import typer

from tandem.cli import recipes_read, recipes_write

app = typer.Typer(
    help="Browse, check and extend the catalogue of recipes.\n\n"
    "`tandem recipes ls cards=2 kv=q8`\n\n`tandem recipes show glm53-flash-2x64-layer-split`\n\n"
    "`tandem recipes fit glm53-flash-2x64-layer-split --hw 2x64GiB`",
    no_args_is_help=True,
)
app.command("ls")(recipes_read.list_recipes)
app.command("show")(recipes_read.show)
app.command("facets")(recipes_read.facets)
app.command("diff")(recipes_read.difference)
app.command("fit")(recipes_write.fit)
app.command("lint")(recipes_write.lint)
app.command("add")(recipes_write.add)
app.command("confirm")(recipes_write.confirm)
app.command("export")(recipes_read.export)
app.command("serve")(recipes_read.serve)
