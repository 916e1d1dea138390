// What is looked for on the page as a whole. Each function runs inside it, and gives what is wrong.

/** Text that is too faint on its ground: WCAG AA wants 4.5 to 1, and 3 to 1 of large letters. */
export function faintTexts() {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const groundOf = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const ground = colour(getComputedStyle(at).backgroundColor);
      if (ground[3] === 255) return ground;
    }
    return [255, 255, 255, 255];
  };
  const found = new Map();
  let looked = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility({ checkOpacity: true }) || node.closest("title, .skip")) continue;
    looked += 1;
    const style = getComputedStyle(node);
    const [light, dark] = [luminance(colour(node.ownerSVGElement ? style.fill : style.color)), luminance(groundOf(node))].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const [size, weight] = [parseFloat(style.fontSize), Number(style.fontWeight)];
    const isLarge = size >= 24 || (size >= 18.66 && weight >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) found.set(`${node.tagName}.${node.className.baseVal ?? node.className}`, `${ratio.toFixed(2)}: ${texts.currentNode.data.slice(0, 40)}`);
  }
  return { looked, found: [...found].map(([where, what]) => `${where} ${what}`) };
}

/** Elements that reach beyond the window, unless something between them and it scrolls. */
export function overflowing() {
  const width = document.documentElement.clientWidth;
  const found = [];
  if (document.documentElement.scrollWidth > width) found.push(`the page: ${document.documentElement.scrollWidth} of ${width}`);
  for (const node of document.body.querySelectorAll("*")) {
    if (node.closest(".wide, .skip, svg") || !node.checkVisibility()) continue;
    const { right, left } = node.getBoundingClientRect();
    if (right > width + 0.5 || left < -0.5) found.push(`${node.tagName}.${node.className} ${Math.round(left)} to ${Math.round(right)}`);
  }
  return found;
}

/** Text that is cut off where it stands. */
export function clipped() {
  const found = [];
  for (const node of document.body.querySelectorAll("dd, dt, h2, h3, h4, p, li, button, summary")) {
    if (node.checkVisibility() && node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== "inline") found.push(`${node.tagName}.${node.className} ${node.textContent.slice(0, 40)}`);
  }
  return found;
}

/** Everything that the keyboard has to reach, marked so that it can be told again; gives the marks. */
export function markReachable() {
  const all = [...document.querySelectorAll("a[href], button, summary, input, [tabindex='0']")].filter((node) => node.checkVisibility());
  all.forEach((node, at) => node.setAttribute("data-reach", at));
  return all.map((node) => `${node.getAttribute("data-reach")}`);
}

/** What has the focus: its mark, and whether that can be seen. */
export function focused() {
  const node = document.activeElement;
  if (!node || node === document.body) return null;
  const { outlineStyle, outlineWidth } = getComputedStyle(node);
  const { width, height, left, top } = node.getBoundingClientRect();
  return { mark: node.getAttribute("data-reach"), what: `${node.tagName} ${node.className} ${node.textContent.slice(0, 30)}`, seen: outlineStyle !== "none" && parseFloat(outlineWidth) >= 1 && width > 0 && height > 0 && left > -1 && top > -1 };
}
