"""What a page is made of."""

import dataclasses

from ddptools.common.table import Table
from ddptools.pictures.charts import Picture


@dataclasses.dataclass
class Heading:
    level: int
    text: str


@dataclasses.dataclass
class Notes:
    """What the reader should know before the numbers."""

    lines: list[str]


class Warnings(Notes):
    """Numbers that cannot be what they are called."""


@dataclasses.dataclass
class Answer:
    text: str  # empty: no more than a remark
    about: str = ""  # which cases, against what; or the remark
    size: float = 0.0  # of the largest difference

    @property
    def sentence(self) -> str:
        about = f" ({self.about})" if self.text and self.about else self.about
        return f"{self.text}{about}."


@dataclasses.dataclass
class Entry:
    title: str  # that of its heading, to which it links
    question: str
    facts: str  # machine and date, if the title of the page does not tell them
    answers: list[Answer]
    picture: Picture | None


@dataclasses.dataclass
class Summary:
    entries: list[Entry]


class HowToRead:
    """What the words of a report mean, at its end; Summary links to it."""


Block = Heading | Notes | Warnings | Summary | HowToRead | str | Table | Picture


def pictures_of(blocks: list[Block]) -> list[Picture]:
    entries = [entry.picture for block in blocks if isinstance(block, Summary) for entry in block.entries]
    return [picture for picture in [*entries, *blocks] if isinstance(picture, Picture)]
