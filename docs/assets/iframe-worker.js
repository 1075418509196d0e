// Browsers do not start workers from files. There, the theme's search runs in a hidden frame instead. The name tells the
// `offline` plugin that it need not load such a script over the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      const { contentWindow: inside, contentDocument: page } = frame
      page.open()
      page.write("<!doctype html><body></body>")
      page.close()
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = page.createElement("script")
      this.started = new Promise((started) => { script.onload = started })
      this.inside = inside
      script.src = new URL(url, location)
      page.body.append(script)
    }

    async postMessage(data) {
      await this.started
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
