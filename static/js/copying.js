// Copy buttons: `data-copies` names the element whose text goes to the clipboard.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copies]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copies);
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch {
    // Without https there is no clipboard: select it, so that one keystroke copies.
    window.getSelection().selectAllChildren(source);
    return;
  }
  const before = button.textContent;
  button.textContent = button.dataset.done;
  setTimeout(() => (button.textContent = before), 1600);
});
