"""What the help of each command ends with: a line or two to begin from. A test parses them all."""

from __future__ import annotations

import inspect

import typer

EXAMPLES: dict[str, tuple[str, ...]] = {
    "chat": (
        "toolcrib chat 'What time is it in Asia/Tokyo?'",
        "toolcrib chat --model openai:gpt-5 --tools shop.py --audit sqlite:///crib.db",
    ),
    "call": (
        """toolcrib call calculate '{"expression": "23*17+5"}'""",
        "echo '{\"order\": 77}' | toolcrib call refund - --tools shop.py --json",
    ),
    "pick": ("toolcrib pick 'how many miles is a marathon' --scorer light --explain",),
    "eval-pick": (
        "toolcrib eval-pick --tools tools.json --queries questions.jsonl --scorer light",
        "toolcrib eval-pick --set FOLDER --scorer keyword --scorer light --plot picking.svg",
    ),
    "encode": ("toolcrib encode --wire gemini --tools shop.py",),
    "decode": ("toolcrib decode answer.json", "curl … | toolcrib decode --tools shop.py"),
    "providers": ("toolcrib providers --json",),
    "tools list": ("toolcrib tools list shop.py",),
    "tools show": ("toolcrib tools show refund --tools shop.py",),
    "tools check": ("toolcrib tools check shop.py --provider anthropic --provider gemini",),
    "tools lock": ("toolcrib tools lock shop.py", "toolcrib tools lock shop.py --check"),
    "local install": ("toolcrib local install --force",),
    "audit list": ("toolcrib audit list --tool refund --status failed --since 3d",),
    "audit show": ("toolcrib audit show call_77 --log sqlite:///crib.db",),
    "audit verify": ("toolcrib audit verify", "toolcrib audit verify --jsonl log.jsonl"),
    "audit head": ("toolcrib audit head --log sqlite:///crib.db",),
    "audit keygen": ("toolcrib audit keygen shop.key --name example.com/shop",),
    "audit checkpoint": ("toolcrib audit checkpoint today.checkpoint --signing-key shop.key",),
    "audit prove": ("toolcrib audit prove call_77 77.tlog-proof --checkpoint today.checkpoint",),
    "audit verify-inclusion": (
        "toolcrib audit verify-inclusion 77.tlog-proof --public-key example.com/shop+…",
    ),
    "audit migrate": ("toolcrib audit migrate --key-file audit.key",),
    "audit export": ("toolcrib audit export log.jsonl --since 30d",),
    "audit prune": ("toolcrib audit prune --before 90d",),
    "approvals list": ("toolcrib approvals list --store sqlite:///crib.db",),
    "approvals approve": (
        "toolcrib approvals approve apr_5f0c --by grace",
        "toolcrib approvals approve apr_5f0c --arguments '{\"order\": 78}'",
    ),
    "approvals refuse": ("toolcrib approvals refuse apr_77aa apr_90b1 --reason 'ask sales'",),
}


def explain(app: typer.Typer, path: str = "") -> None:
    """Ends each command's help with its examples, and lets its paragraphs fill the lines."""
    for command in app.registered_commands:
        paragraphs = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(p.split()) for p in paragraphs.split("\n\n"))
        command.epilog = "\n\n".join(("Examples:", *EXAMPLES[f"{path}{command.name}"]))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            explain(group.typer_instance, f"{path}{group.name} ")
