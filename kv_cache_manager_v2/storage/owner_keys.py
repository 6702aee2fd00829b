"""Content keys from whoever owns the published pages; queues have it before there is an owner."""

from typing import final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from .page_owner import PageOwner
from .victim_queue import ContentKeys


@final
@mypyc_attr(native_class=True)
class OwnerKeys(ContentKeys):
    __slots__ = ("owner",)

    owner: PageOwner | None

    def __init__(self) -> None:
        self.owner = None

    def content_key(self, page: i64) -> i64:
        owner = self.owner
        assert owner is not None
        return owner.content_key(page)

    def fill_keys(self, pages: vec[i64], count: i64, keys: vec[i64]) -> None:
        owner = self.owner
        assert owner is not None
        owner.fill_keys(pages, count, keys)
