(() => {
  "use strict";
  const section = document.querySelector("section.searched");
  const items = [...section.querySelectorAll("[data-mark]")].map((element) => ({
    element,
    mark: element.dataset.mark,
    text: element.textContent.toLowerCase(),
  }));
  if (!items.length) return;
  const groups = [...new Set(items.map(({ element }) => element.parentElement.closest("details.part")))];
  const noun = section.querySelector("h2").textContent.toLowerCase();

  function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  }

  function pill(mark) {
    const same = items.filter((item) => item.mark === mark);
    const text = mark ? same[0].element.querySelector(".mark").cloneNode(true) : `all ${items.length}`;
    if (mark) text.append(` ${same.length}`);
    const input = make("input", { type: "radio", name: "mark", value: mark, checked: !mark });
    return make("label", { className: "pill" }, input, make("span", {}, text));
  }

  const search = make("input", {
    type: "search", id: "search", autocomplete: "off", spellcheck: false, placeholder: "such as 6ND, bf16, optimizer",
  });
  const shown = make("span", { id: "shown", role: "status" });
  const unfold = make("button", { type: "button", id: "unfold" });
  const legend = make("legend", { className: "unseen" }, "Verdict");
  const order = [...section.querySelectorAll("thead th")].map((cell) => cell.textContent);
  const marks = [...new Set(items.map(({ mark }) => mark))].sort((a, b) => order.indexOf(a) - order.indexOf(b));
  const form = make(
    "form", { className: "filter" },
    make("label", { htmlFor: "search" }, `Search ${noun}`), search,
    make("fieldset", {}, legend, ...["", ...marks].map(pill)),
    make("p", { className: "status" }, shown, unfold),
  );
  section.querySelector(".folds").before(form);
  const visible = () => items.filter(({ element }) => !element.hidden);

  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const mark = form.elements.mark.value;
    for (const item of items) {
      item.element.hidden = (mark && item.mark !== mark) || !words.every((word) => item.text.includes(word));
    }
    for (const group of groups) {
      group.hidden = !group.querySelector("[data-mark]:not([hidden])");
      if (words.length || mark) group.open = true;
    }
    const number = visible().length;
    shown.textContent = number === items.length ? `${number} ${noun}` : `${number} of ${items.length} ${noun}`;
    label();
  }

  function label() {
    const all = visible();
    unfold.disabled = !all.length;
    unfold.textContent = all.length && all.every(({ element }) => element.open) ? "Close all shown" : "Open all shown";
  }

  function openTarget() {
    const found = items.find(({ element }) => `#${encodeURIComponent(element.id)}` === location.hash);
    if (!found) return;
    const { element } = found;
    if (element.hidden) {
      form.reset();
      apply();
    }
    element.open = element.parentElement.closest("details.part").open = true;
    element.scrollIntoView();
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  unfold.addEventListener("click", () => {
    const all = visible();
    const open = !all.every(({ element }) => element.open);
    for (const { element } of all) element.open = element.parentElement.closest("details.part").open = open;
    label();
  });
  document.addEventListener("toggle", label, true);
  window.addEventListener("hashchange", openTarget);
  apply();
  openTarget();
})();
