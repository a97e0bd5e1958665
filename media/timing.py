"""Which of the film's 24 frames a second each frame of a clip fills, by time stamps.

Frame i is shown from slot floor(24 t_i + 1/2) to the slot of the next one, t counted from the first frame; a
frame without a slot is dropped. For a constant rate this is diffusers' rule. A container's clock may be
coarser than its rate (milliseconds in WebM): a stamp within one tick of i / rate is taken for exactly that.
"""

from fractions import Fraction

from queue_schemas.geometry import FPS


class Slots:
    """Turns the stamps of successive frames into slots."""

    def __init__(self, *, rate: Fraction | None, tick: Fraction) -> None:
        """`rate` is the container's frames a second, `tick` its clock's unit in seconds."""
        self._rate, self._tick = rate, tick
        self._first: Fraction | None = None
        self._index, self._last = 0, Fraction(0)

    @property
    def origin(self) -> Fraction:
        """The first frame's stamp in seconds on the container's clock."""
        return self._first or Fraction(0)

    @property
    def seconds(self) -> Fraction:
        """When the frame stamped last is shown, from the first."""
        return self._last

    def place(self, stamp: Fraction | None) -> int:
        """Return the first slot of the next frame, by its stamp in seconds; None: one frame later."""
        if self._first is None:
            self._first = stamp or Fraction(0)
        step = 1 / self._rate if self._rate else self._tick
        seconds = self._last + step * bool(self._index) if stamp is None else stamp - self._first
        seconds = on_rate(seconds, index=self._index, rate=self._rate, tick=self._tick)
        self._index += 1
        self._last = max(self._last, seconds)
        return slot_of(self._last)

    def end(self, duration: Fraction | None) -> int:
        """Return the slot after the last frame's; `duration` is that frame's, if the container knows it."""
        if not duration:
            duration = 1 / self._rate if self._rate else Fraction(1, FPS)
        seconds = self._last + duration
        return slot_of(on_rate(seconds, index=self._index, rate=self._rate, tick=2 * self._tick))


def on_rate(seconds: Fraction, *, index: int, rate: Fraction | None, tick: Fraction) -> Fraction:
    """Return exactly `index` / `rate` for what the clock's coarseness alone may have moved from it."""
    exact = index / rate if rate else None
    return exact if exact is not None and abs(seconds - exact) <= tick else seconds


def slot_of(seconds: Fraction) -> int:
    """Return floor(24 t + 1/2)."""
    return (2 * seconds * FPS + 1).__floor__() // 2
