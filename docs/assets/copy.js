// Each program gets a button that copies it: without the prompts of an interactive session and what it printed.
function programOf(text) {
  const lines = text.split("\n");
  if (!lines.some((line) => line.startsWith(">>> "))) return text;
  return lines.filter((line) => /^(>>>|\.\.\.) /.test(line)).map((line) => line.slice(4)).join("\n");
}

document.addEventListener("DOMContentLoaded", () => {
  const programs = "div.highlight-python, div.highlight-Python, div.highlight-default, div.highlight-bash";
  for (const block of document.querySelectorAll(programs)) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(programOf(block.querySelector("pre").innerText));
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    block.querySelector("div.highlight").append(button);
  }
});
