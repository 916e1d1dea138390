// Elements, and changing only what has changed. Nothing here takes markup: names of models and replicas are text.

const SVG = "http://www.w3.org/2000/svg";
const TEXT = Symbol("text");

/** An element with attributes and children; strings become text. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same, of SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** Writes text into an element that holds nothing else; not at all if it stands there. */
export function write(node, text) {
  if (node[TEXT] === text) return;
  node[TEXT] = text;
  node.textContent = text;
}

/** Sets an attribute, or takes it away where there is no value; not at all if it is so. */
export function mark(node, name, value) {
  const known = node.getAttribute(name);
  if (value === null || value === undefined || value === false) {
    if (known !== null) node.removeAttribute(name);
  } else if (known !== String(value)) {
    node.setAttribute(name, value);
  }
}

/** Shows or hides. */
export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/** Children of `parent` that stand for items, in their order: made once, updated, moved, taken away. */
export class Listing {
  #parent;
  #make;
  #known = new Map();

  /** `make(item)` gives `{node, update(item)}`. */
  constructor(parent, make) {
    this.#parent = parent;
    this.#make = make;
  }

  /** The parts that stand for the items of the last `show`, by key. */
  get parts() {
    return this.#known;
  }

  show(items, keyOf) {
    const next = new Map();
    let at = this.#parent.firstChild;
    for (const item of items) {
      let key = keyOf(item);
      // Two that are called the same still are two.
      while (next.has(key)) key += "'";
      const part = this.#known.get(key) ?? this.#make(item);
      next.set(key, part);
      part.update(item);
      if (part.node === at) at = at.nextSibling;
      else this.#parent.insertBefore(part.node, at);
    }
    for (const [key, part] of this.#known) {
      if (!next.has(key)) part.node.remove();
    }
    this.#known = next;
  }
}
