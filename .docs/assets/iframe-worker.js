// A page that is opened from a folder may start no worker. The search then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      this.frame = frame.contentWindow;
      this.frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame.importScripts = (...sources) => Promise.all(sources.map((source) => this.load(source)));
      this.loaded = this.load(url);
    }

    load(source) {
      return new Promise((done) => {
        const script = this.frame.document.createElement("script");
        script.src = source;
        script.onload = done;
        this.frame.document.body.append(script);
      });
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
