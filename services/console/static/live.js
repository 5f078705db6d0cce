// Draws the live part of a page anew when the console says that something changed.
// One stream per tab, closed while the tab is hidden; without a stream it asks each
// 10 s. When nothing was heard for 40 s it says that what is shown is stale, and asks.
// Without this file the pages are the same, and reloading them does it.
const part = () => document.querySelector("[data-live]");
const say = document.getElementById("say");
const pollEach = 10000;
const silentAfter = 40000; // the console's words come each 17 s at least

let stream = null;
let timer = 0;
let watch = 0;
let asking = false;

async function redraw() {
  const old = part();
  // Somebody who is in there with the keyboard, or has marked text, isn't disturbed.
  if (!old || asking || document.hidden || old.querySelector(":focus-visible") || !getSelection().isCollapsed) return;
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(pollEach) });
    if (answer.redirected) {
      location.reload(); // signed out
      return;
    }
    if (!answer.ok) return; // the ages on the page stay true: it says when it was drawn
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("[data-live]");
    if (!fresh) return;
    const open = [...old.querySelectorAll("details")].map((d) => d.open);
    fresh.querySelectorAll("details").forEach((d, i) => (d.open = open[i] ?? false));
    const says = fresh.querySelector("[data-say]")?.textContent;
    if (old.classList.contains("stale")) {
      say.textContent = "";
      say.className = "unseen";
    }
    if (says && says !== old.querySelector("[data-say]")?.textContent) say.textContent = says;
    old.replaceWith(document.adoptNode(fresh));
    const drawn = page.querySelector("footer");
    if (drawn) document.querySelector("footer").replaceWith(document.adoptNode(drawn));
    heard();
  } catch {
    // No answer: the next word or the next poll asks again.
  } finally {
    asking = false;
  }
}

function stop() {
  stream?.close();
  stream = null;
  clearInterval(timer);
  clearTimeout(watch);
  timer = 0;
}

function heard() {
  clearTimeout(watch);
  if (stream || timer) watch = setTimeout(silent, silentAfter);
}

// silent: the connection may be gone without a word, or the console hangs.
function silent() {
  part()?.classList.add("stale");
  say.textContent = say.dataset.silent;
  say.className = "silent";
  if (stream) poll(); // else it does, and an answer ends this
}

function poll() {
  stop();
  timer = setInterval(redraw, pollEach);
  heard();
}

function start() {
  stop();
  if (!part()) return;
  stream = new EventSource("/live");
  heard();
  stream.addEventListener("changed", () => {
    heard();
    redraw();
  });
  stream.addEventListener("error", () => {
    if (stream?.readyState === EventSource.CLOSED) poll(); // refused; else the browser opens it again
  });
}

document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
addEventListener("pagehide", stop);
if (!document.hidden) start();
