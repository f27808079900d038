// What every portal page does: dialogs, times in the reader's zone, and telling when polling
// gets no answer. Owns no page's own behaviour.

import "./copying.js";

const connection = document.getElementById("connection");

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-opens], [data-closes]");
  if (!target) return;
  if (target.dataset.opens) document.getElementById(target.dataset.opens)?.showModal();
  else target.closest("dialog")?.close();
});

const clock = new Intl.DateTimeFormat(document.documentElement.lang || undefined, {
  dateStyle: "medium",
  timeStyle: "medium",
});

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const when = new Date(time.dateTime);
    if (!Number.isNaN(when.getTime())) time.textContent = clock.format(when);
  }
}

localTimes(document);

document.body.addEventListener("htmx:afterSwap", (event) => {
  connection.hidden = true;
  localTimes(event.detail.target);
});
document.body.addEventListener("htmx:beforeRequest", (event) => {
  // A hidden page asks nothing; an open dialog inside the part must not be swapped away.
  const polling = event.detail.elt.dataset.polls !== undefined;
  if (polling && (document.hidden || event.detail.elt.querySelector("dialog[open]"))) event.preventDefault();
});
document.body.addEventListener("htmx:sendError", () => (connection.hidden = false));
document.body.addEventListener("htmx:responseError", (event) => {
  if (event.detail.xhr.status >= 500) connection.hidden = false;
  // The thing is gone: the page says so itself when it is loaded again.
  if (event.detail.xhr.status === 404) window.location.reload();
});
