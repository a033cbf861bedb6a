"""What all pages have in common, those of the viewer and those of one file: their colours and their text."""

from pathlib import Path

STYLE = Path(__file__).with_name("pages.css")
