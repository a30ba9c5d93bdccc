"""What a page is made of."""

import dataclasses

from ddptools.common.table import Table
from ddptools.pictures.charts import Picture


class Texts(Table):
    """A table whose cells hold what a model wrote: any characters, also line feeds and those of Markdown."""


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


class Disturbed(Notes):
    """Which numbers are not to be trusted, and why: the first line of a page, and the one above such numbers."""


@dataclasses.dataclass
class KeyNumber:
    name: str
    value: str
    about: str = ""
    mark: str = ""  # why it is not to be trusted, in a word or two
    is_long: bool = False  # as a hash is


@dataclasses.dataclass
class KeyNumbers:
    """In large type. Those with a mark are not bold."""

    numbers: list[KeyNumber]


@dataclasses.dataclass
class Answer:
    text: str  # empty: no more than a remark
    about: str = ""  # which cases, against what; or the remark
    size: float = 0.0  # of the largest difference
    mark: str = ""  # why it is not to be trusted, in a word or two: then it is not bold

    @property
    def sentence(self) -> str:
        text = f"{self.text}, {self.mark}" if self.mark else self.text
        about = f" ({self.about})" if self.text and self.about else self.about
        return f"{text}{about}."


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


Block = Heading | Notes | Warnings | Disturbed | KeyNumbers | Summary | HowToRead | str | Table | Picture


def pictures_of(blocks: list[Block]) -> list[Picture]:
    entries = [entry.picture for block in blocks if isinstance(block, Summary) for entry in block.entries]
    return [picture for picture in [*entries, *blocks] if isinstance(picture, Picture)]
