// Takes the token of a one-time link from behind the # into the form, and out of the address bar.

const field = document.querySelector("[data-from-address]");
if (field && window.location.hash.length > 1) {
  field.value = window.location.hash.slice(1);
  window.history.replaceState(null, "", window.location.pathname);
}
