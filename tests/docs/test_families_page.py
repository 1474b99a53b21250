"""The table of families is what is done with them."""

import families_page


def test_the_page_is_what_is_done():
    written = families_page.PAGE.read_text(encoding="utf-8")
    assert written == families_page.page(), "run python tools/families_page.py"


def test_every_family_is_on_it():
    told = set(families_page.EXAMPLES)
    assert not families_page.families() - told - families_page.NOT_OF_DATA
    assert not told & families_page.NOT_OF_DATA
