"""The characters that no reader sees, as one pattern.

Rule: nothing that a person reads and decides on contains one of these. They are the controls other than
tab and line feed, the categories Cf, Cs, Zl and Zp, what Unicode calls default ignorable (fillers,
joiners, variation selectors), and the blank Braille pattern. (`lint` warns of fewer in descriptions:
some of these belong to scripts and emoji.)
"""

from __future__ import annotations

import re

INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2"
    "\u115f-\u1160\u17b4-\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
