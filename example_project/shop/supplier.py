"""The shop's supplier, whose catalogue comes page by page, and slowly."""

import time
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

PAGES = 20
PAGE_SIZE = 50


class Article(NamedTuple):
    sku: str
    name: str
    price: Decimal


def pages(seconds_per_page: float = 1.0) -> Iterator[list[Article]]:
    """In a real shop: requests to another company's slow server."""
    for page in range(PAGES):
        time.sleep(seconds_per_page)
        yield [_article(number) for number in range(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)]


def _article(number: int) -> Article:
    return Article(sku=f"A-{number:05}", name=f"Article {number}", price=Decimal(100 + number % 900) / 100)
