// The create form: a chosen catalog model fills what it brings, and only fields that nobody typed in.

const filling = JSON.parse(document.getElementById("catalog-filling").textContent);
const model = document.getElementById("id_model");
const typed = new Set();

for (const name of ["model_name", "model_path", "image", "engine"]) {
  const field = document.getElementById(`id_${name}`);
  if (field.value) typed.add(name);
  field.addEventListener("input", () => (field.value ? typed.add(name) : typed.delete(name)));
}

model.addEventListener("change", () => {
  const chosen = filling[model.value] ?? {};
  for (const name of ["model_name", "model_path", "image", "engine"]) {
    if (!typed.has(name)) document.getElementById(`id_${name}`).value = chosen[name] ?? "";
  }
});
