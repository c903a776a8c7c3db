// The page: what happens when something is drawn, loaded or chosen.

import { Bars, longest } from "./bars.js";
import { Choices } from "./choices.js";
import { ImageError, readImage } from "./image-file.js";
import { Layers } from "./layers.js";
import { attack, Network } from "./network.js";
import { Pad } from "./pad.js";
import { paintGrey, paintSigned } from "./pictures.js";
import { normalise, SIDE } from "./preprocess.js";

const SPEAK_AFTER = 700; // milliseconds without a change, before a screen reader is told the answer
const BLANK = new Float32Array(SIDE * SIDE);

const find = (id) => document.getElementById(id);
const lengths = new Bars(find("lengths"));
const attackedLengths = new Bars(find("attacked-lengths"));
const layers = new Layers(find("layers"));
const opened = new Map(); // networks by the path of their graph
const times = [];
let choices, shown, speaking;
let asked = 0; // images so far: what an earlier one turns out to be comes too late once another is opened
let standing = { text: "Loading the network …" }; // told until it is over
let passing = null; // told until the next change

const pad = new Pad(find("ink"), find("cursor"), {
  changed() {
    find("undo").disabled = !pad.canUndo;
    find("clear").disabled = pad.isEmpty;
    find("hint").hidden = !pad.isEmpty;
    tell(null);
    update();
  },
  spoken: (text) => (find("pen").textContent = text),
});

/** Brings the page up to date; changes that come in meanwhile are taken up together, when it is. */
const update = (() => {
  let wanted = false, busy = false;
  return async () => {
    wanted = true;
    if (busy || !choices) return;
    busy = true;
    while (wanted) {
      wanted = false;
      await new Promise(requestAnimationFrame);
      try {
        await refresh();
        stand(null);
      } catch (error) {
        fail(error);
      }
    }
    busy = false;
  };
})();

async function refresh() {
  const network = await openChosen();
  const image = normalise(pad.ink());
  paintGrey(find("seen"), image ?? BLANK);
  // An empty pad is shown too: its capsules are all zero, for there is no bias.
  const found = await network.read(image ?? BLANK);
  const best = image ? longest(found.lengths) : null;
  lengths.show(image && found.lengths);
  layers.show(found.layers, best);
  find("digit").textContent = best ?? "–";
  document.body.classList.toggle("empty", !image);
  await showAttack(network, image, best);
  showTime(image && found.milliseconds);
  clearTimeout(speaking);
  const text = image ? `Reads ${best}, length ${found.lengths[best].toFixed(2)}` : "Empty: draw a digit";
  speaking = setTimeout(() => (find("spoken").textContent = text), SPEAK_AFTER);
}

async function openChosen() {
  const { network, variant } = choices;
  if (!opened.has(variant.reading)) {
    stand({ text: `Loading ${network.name} …` });
    opened.set(variant.reading, await Network.open(choices.manifest, network, variant));
  }
  const ready = opened.get(variant.reading);
  if (shown !== variant.reading) {
    shown = variant.reading;
    times.length = 0;
    layers.open(ready.filters);
    find("lead-parameters").textContent = new Intl.NumberFormat("en").format(network.parameters);
  }
  return ready;
}

async function showAttack(network, image, best) {
  const epsilon = find("epsilon").valueAsNumber;
  if (!image) {
    paintGrey(find("attacked"), BLANK);
    paintSigned(find("direction"), BLANK, 1);
    attackedLengths.show(null);
    find("verdict").textContent = "";
    return;
  }
  const direction = await network.direction(image);
  const attacked = attack(image, direction, epsilon);
  const found = await network.read(attacked);
  const now = longest(found.lengths);
  paintGrey(find("attacked"), attacked);
  paintSigned(find("direction"), attacked.map((value, at) => value - image[at]), 0.4);
  attackedLengths.show(found.lengths);
  find("verdict").textContent = now === best ? `Still read as ${now}.` : `Now read as ${now}, no longer as ${best}.`;
  find("verdict").classList.toggle("fooled", now !== best);
}

/** The median of the last readings: one alone may be twice as long as the next. */
function showTime(milliseconds) {
  if (milliseconds === null) times.length = 0;
  else times.push(milliseconds);
  if (times.length > 9) times.shift();
  const median = [...times].sort((a, b) => a - b)[times.length >> 1];
  find("time").textContent = times.length ? `in ${median.toFixed(1)} ms` : "";
}

function stand(message) {
  standing = message;
  tell(passing);
}

function tell(message) {
  passing = message;
  const { text = "", bad = false } = passing ?? standing ?? {};
  find("notice").textContent = text;
  find("notice").classList.toggle("bad", bad);
}

function fail(error) {
  stand({ text: `The network could not be loaded (${error.message}). Reload the page to try again.`, bad: true });
}

async function openFile(file) {
  if (!file) return;
  const own = ++asked;
  try {
    const picture = await readImage(file);
    if (own === asked) pad.show(picture);
  } catch (error) {
    if (!(error instanceof ImageError)) throw error;
    if (own === asked) tell({ text: error.message, bad: true });
  }
}

function listen() {
  find("undo").addEventListener("click", () => pad.undo());
  find("clear").addEventListener("click", () => pad.clear());
  find("file").addEventListener("change", ({ target }) => {
    openFile(target.files[0]);
    target.value = ""; // so that the same file can be opened again
  });
  find("pad").addEventListener("dragover", (event) => event.preventDefault());
  find("pad").addEventListener("drop", (event) => {
    event.preventDefault();
    openFile(event.dataTransfer.files[0]);
  });
  find("epsilon").addEventListener("input", ({ target }) => {
    find("epsilon-value").textContent = target.valueAsNumber.toFixed(2);
    update();
  });
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "z") {
      event.preventDefault();
      pad.undo();
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    pad.repaint();
    shown = undefined; // the filters are painted in the theme's colours
    update();
  });
}

try {
  listen();
  const response = await fetch("manifest.json");
  if (!response.ok) throw new Error(`manifest.json: ${response.status} ${response.statusText}`);
  const manifest = await response.json();
  choices = new Choices(manifest, find("networks"), find("precisions"), update);
  find("version").textContent = `purecaps ${manifest.version}.`;
  update();
} catch (error) {
  fail(error);
}
