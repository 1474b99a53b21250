"""Results for people: a page to look at, and verdicts in words."""

from vpng.paper.report.page import build_page, write_report

__all__ = ["build_page", "write_report"]
