// A copied console block contains its commands, without prompts and output. Here-documents stay whole.
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.md-code__button[data-md-type='copy'], .md-clipboard")
  const block = button && button.closest(".language-console, .highlight")
  if (!block || !block.classList.contains("language-console")) return
  const lines = block.querySelector("code").innerText.split("\n")
  const commands = []
  let until = null
  for (const line of lines) {
    if (until !== null) { commands.push(line); if (line === until) until = null; continue }
    const continued = commands.length && commands[commands.length - 1].endsWith("\\")
    if (!line.startsWith("$ ") && !continued) continue
    commands.push(line.replace(/^\$ /, ""))
    const here = line.match(/<<-?\s*'?(\w+)'?/)
    if (here) until = here[1]
  }
  if (commands.length) setTimeout(() => navigator.clipboard.writeText(commands.join("\n") + "\n"), 0)
})
