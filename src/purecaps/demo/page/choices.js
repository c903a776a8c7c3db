// The switch between networks and between the precisions of their weights.

const number = new Intl.NumberFormat("en");

export class Choices {
  #networks;
  #chosen;
  #precisions;

  /**
   * @param {HTMLElement} cards @param {HTMLElement} segments
   * @param {() => void} changed
   */
  constructor(manifest, cards, segments, changed) {
    this.manifest = manifest;
    this.#networks = manifest.networks;
    this.#precisions = [...new Set(this.#networks.flatMap(({ variants }) => variants.map(({ precision }) => precision)))];
    this.#chosen = { network: manifest.first, precision: this.#precisions[0] };
    const choose = (part) => {
      Object.assign(this.#chosen, part);
      this.#refresh(cards, segments);
      changed();
    };
    for (const { name } of this.#networks) cards.append(radio("network", name, () => choose({ network: name })));
    for (const precision of this.#precisions)
      segments.append(radio("precision", precision, () => choose({ precision })));
    segments.hidden = this.#precisions.length < 2;
    this.#refresh(cards, segments);
  }

  get network() {
    return this.#networks.find(({ name }) => name === this.#chosen.network);
  }

  /** The chosen precision, or the first one of a network that lacks it. */
  get variant() {
    return pick(this.network, this.#chosen.precision);
  }

  #refresh(cards, segments) {
    cards.querySelectorAll("label").forEach((label, index) => {
      const network = this.#networks[index];
      const { bytes, test_error: error } = pick(network, this.#chosen.precision);
      label.querySelector("input").checked = network.name === this.#chosen.network;
      label.querySelector(".facts").replaceChildren(
        line(`${number.format(network.parameters)} parameters`),
        line(`${number.format(bytes)} bytes`),
        line(`${error.toFixed(2)} % test error`),
      );
    });
    segments.querySelectorAll("label").forEach((label, index) => {
      const precision = this.#precisions[index];
      const input = label.querySelector("input");
      input.disabled = !this.network.variants.some((variant) => variant.precision === precision);
      input.checked = precision === this.variant.precision;
    });
  }
}

function pick(network, precision) {
  return network.variants.find((variant) => variant.precision === precision) ?? network.variants[0];
}

function radio(group, value, chosen) {
  const label = document.createElement("label");
  const input = Object.assign(document.createElement("input"), { type: "radio", name: group, value });
  input.addEventListener("change", chosen);
  label.append(input, Object.assign(document.createElement("span"), { className: "name", textContent: value }));
  label.append(Object.assign(document.createElement("span"), { className: "facts" }));
  return label;
}

const line = (textContent) => Object.assign(document.createElement("span"), { textContent });
