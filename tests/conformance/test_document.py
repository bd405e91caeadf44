"""The documentation's page is what the records print: it cannot be edited by hand."""

from tests.conformance.document import PAGE, RECORDS, Records, page


def test_page_is_printed_from_the_records():
    assert PAGE.read_text() == page(Records.read())


def test_records_are_as_the_runner_writes_them():
    assert RECORDS.read_text() == Records.read().text()
