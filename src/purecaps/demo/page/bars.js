// Ten lengths as bars, the longest marked.

export class Bars {
  #rows;

  /** @param {HTMLElement} list */
  constructor(list) {
    this.#rows = Array.from({ length: 10 }, (_, digit) => {
      const row = document.createElement("li");
      const name = Object.assign(document.createElement("span"), { className: "name", textContent: digit });
      const track = Object.assign(document.createElement("span"), { className: "track" });
      const fill = track.appendChild(Object.assign(document.createElement("span"), { className: "fill" }));
      const value = Object.assign(document.createElement("span"), { className: "value" });
      row.append(name, track, value);
      list.append(row);
      return { row, fill, value };
    });
    this.show(null);
  }

  /** @param {Float32Array | null} lengths null where there is nothing to read */
  show(lengths) {
    const best = lengths && longest(lengths);
    this.#rows.forEach(({ row, fill, value }, digit) => {
      row.classList.toggle("best", digit === best);
      fill.style.setProperty("--length", lengths ? lengths[digit] : 0);
      value.textContent = lengths ? lengths[digit].toFixed(2) : "";
    });
  }
}

/** The class whose capsule is longest. @param {Float32Array} lengths */
export function longest(lengths) {
  return lengths.indexOf(lengths.reduce((most, value) => Math.max(most, value)));
}
