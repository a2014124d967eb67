(() => {
  "use strict";
  const form = document.getElementById("filter");
  const search = document.getElementById("search");
  const shown = document.getElementById("shown");
  const unfold = document.getElementById("unfold");
  const topics = [...document.querySelectorAll("details.topic")];
  const claims = [...document.querySelectorAll("details.claim")].map((element) => ({
    element,
    verdict: element.dataset.verdict,
    text: element.textContent.toLowerCase(),
  }));
  const visible = () => claims.filter(({ element }) => !element.hidden);

  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdict = form.elements.verdict.value;
    for (const claim of claims) {
      claim.element.hidden =
        (verdict && claim.verdict !== verdict) || !words.every((word) => claim.text.includes(word));
    }
    for (const topic of topics) {
      topic.hidden = !topic.querySelector("details.claim:not([hidden])");
      if (words.length || verdict) topic.open = true;
    }
    const number = visible().length;
    shown.textContent = number === claims.length ? `${number} claims` : `${number} of ${claims.length} claims`;
    label();
  }

  function label() {
    const all = visible();
    unfold.disabled = !all.length;
    unfold.textContent = all.length && all.every(({ element }) => element.open) ? "Close all shown" : "Open all shown";
  }

  function openTarget() {
    const target = [...document.querySelectorAll("details.claim")].find(({ id }) => `#${encodeURIComponent(id)}` === location.hash || `#${id}` === location.hash);
    if (target) {
      if (target.hidden) {
        form.reset();
        apply();
      }
      target.open = target.parentElement.open = true;
      target.scrollIntoView();
    }
  }

  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  unfold.addEventListener("click", () => {
    const all = visible();
    const open = !all.every(({ element }) => element.open);
    for (const { element } of all) element.open = element.parentElement.open = open;
    label();
  });
  document.addEventListener("toggle", label, true);
  window.addEventListener("hashchange", openTarget);
  apply();
  openTarget();
})();
