// Draws the live part of a page anew when the console says that something changed.
// One stream per tab, closed while the tab is hidden; without a stream it asks each
// 10 s. Without this file the pages are the same, and reloading them does it.
const part = () => document.querySelector("[data-live]");
const pollEach = 10000;

let stream = null;
let timer = 0;
let asking = false;

async function redraw() {
  const old = part();
  // Somebody who is in there with the keyboard, or has marked text, isn't disturbed.
  if (!old || asking || document.hidden || old.querySelector(":focus-visible") || !getSelection().isCollapsed) return;
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
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
    if (says && says !== old.querySelector("[data-say]")?.textContent) document.getElementById("say").textContent = says;
    old.replaceWith(document.adoptNode(fresh));
    const drawn = page.querySelector("footer");
    if (drawn) document.querySelector("footer").replaceWith(document.adoptNode(drawn));
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
  timer = 0;
}

function poll() {
  stop();
  timer = setInterval(redraw, pollEach);
}

function start() {
  stop();
  if (!part()) return;
  stream = new EventSource("/live");
  stream.addEventListener("changed", redraw);
  stream.addEventListener("error", () => {
    if (stream?.readyState === EventSource.CLOSED) poll(); // refused; else the browser opens it again
  });
}

document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
addEventListener("pagehide", stop);
if (!document.hidden) start();
