// Put in front of a page: what is wrong with it, as JSON in an element that --dump-dom prints.
const problems = [];
addEventListener('error', (event) => problems.push(`error: ${event.message}`), true);
addEventListener('securitypolicyviolation', (event) => problems.push(`${event.violatedDirective}: ${event.blockedURI}`));
console.error = console.warn = (...words) => problems.push(words.join(' '));

function light(colour) {
  const [red, green, blue] = colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function ground(element) {
  for (let one = element; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (!/^rgba\(.*, 0\)$/.test(colour)) return colour;
  }
  return 'rgb(255, 255, 255)';
}

function contrast(element, ink) {
  const [high, low] = [light(ink), light(ground(element))].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

const words = (element) => `${element.tagName} ${element.getAttribute('class') || ''} ${element.textContent.trim().slice(0, 40)}`;
const says = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());

addEventListener('load', () => {
  const all = [...document.body.querySelectorAll('*')];
  const free = all.filter((one) => !one.closest('.scroll') && !one.closest('.defs') && one.getClientRects().length);
  const wide = free.filter((one) => one.getBoundingClientRect().right > innerWidth + 1);
  const texts = [...document.querySelectorAll('svg text')];
  const cut = texts.filter((one) => {
    const box = one.getBBox();
    const frame = one.ownerSVGElement.viewBox.baseVal;
    return box.x < -1 || box.x + box.width > frame.width + 1 || box.y < -3 || box.y + box.height > frame.height + 3;
  });
  const pale = free.filter((one) => says(one) && !one.closest('svg') && contrast(one, getComputedStyle(one).color) < 4.5);
  const palePlain = texts.filter((one) => !one.classList.contains('in') && contrast(one, getComputedStyle(one).fill) < 4.5);
  const measured = {
    text: document.body.innerText,
    problems,
    requests: performance.getEntriesByType('resource').map((one) => one.name),
    wide: [...wide.map(words), ...(document.documentElement.scrollWidth > innerWidth ? ['the page'] : [])],
    cut: cut.map(words),
    pale: [...pale, ...palePlain].map(words),
    scripts: document.scripts.length,
    images: document.querySelectorAll('img, iframe, object, embed, link').length,
  };
  const output = document.createElement('output');
  output.id = 'measured';
  output.textContent = JSON.stringify(measured);
  document.body.append(output);
});
