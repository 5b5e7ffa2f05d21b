"use strict";
/* Where two texts differ. */

const MOST_EDITS = 400; // words in which two texts may differ and still be compared word by word

/* Where two texts differ, word by word: [first, last) of one, [first, last) of the other, each. */
function differing(one, two) {
  const [a, b] = [words(one), words(two)];
  const most = Math.min(a.length, b.length);
  let front = 0, back = 0;
  while (front < most && a[front].text === b[front].text) front += 1;
  while (back < most - front && a[a.length - 1 - back].text === b[b.length - 1 - back].text) back += 1;
  const edits = wordEdits(a.slice(front, a.length - back), b.slice(front, b.length - back));
  const place = (list, n, pieces) => n < list.length ? list[n].first : pieces.length;
  return edits.map(([a0, a1, b0, b1]) => [place(a, front + a0, one), place(a, front + a1, one),
    place(b, front + b0, two), place(b, front + b1, two)]);
}

/* Words, and what stands between them, with the number of their first token. */
function words(pieces) {
  const found = [];
  const inWord = (piece) => /^[\p{L}\p{N}]*$/u.test(piece);
  pieces.forEach((piece, n) => {
    if (n > 0 && inWord(piece) && inWord(pieces[n - 1])) found[found.length - 1].text += piece;
    else found.push({ first: n, text: piece });
  });
  return found;
}

/* The least number of words to take out and put in (Myers' algorithm), as stretches that differ;
   all is one stretch if there are more than can be found at once. */
function wordEdits(a, b) {
  const whole = a.length + b.length ? [[0, a.length, 0, b.length]] : [];
  const reached = new Map([[1, 0]]), history = []; // furthest word of a on each diagonal
  for (let edits = 0; edits <= MOST_EDITS; edits += 1) {
    history.push(new Map(reached));
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && reached.get(k - 1) < reached.get(k + 1));
      let x = down ? reached.get(k + 1) : reached.get(k - 1) + 1;
      while (x < a.length && x - k < b.length && a[x].text === b[x - k].text) x += 1;
      reached.set(k, x);
      if (x >= a.length && x - k >= b.length) return stretches(history, a.length, b.length);
    }
  }
  return whole;
}

/* The path of edits walked back from its end; edits that touch become one stretch. */
function stretches(history, x, y) {
  const found = [];
  for (let edits = history.length - 1; edits > 0; edits -= 1) {
    const reached = history[edits], k = x - y;
    const down = k === -edits || (k !== edits && reached.get(k - 1) < reached.get(k + 1));
    const before = down ? k + 1 : k - 1, fromX = reached.get(before), fromY = fromX - before;
    const [toX, toY] = down ? [fromX, fromY + 1] : [fromX + 1, fromY];
    const next = found[0];
    if (next && next[0] === toX && next[2] === toY) [next[0], next[2]] = [fromX, fromY];
    else found.unshift([fromX, toX, fromY, toY]);
    [x, y] = [fromX, fromY];
  }
  return found;
}
