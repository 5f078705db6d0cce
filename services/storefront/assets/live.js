// Keeps a waiting page new until it has come to its end. A stream says when it has
// changed; without one it's asked for again and again. Only what waits is changed,
// so that focus and scrolling stay, and its language stays too. A hidden tab has no
// stream and asks nothing. When the page can't be had it says so, and asks less and
// less often.
const longest = 30000;

let content = document.getElementById("content");
const live = document.getElementById("live");
const here = new URL(location.href);
here.searchParams.set("live", document.documentElement.lang);
const first = Number(content.dataset.wait);
let pause = first;
let timer = 0;
let stream = null;

function plan(ms) {
  clearTimeout(timer);
  timer = document.hidden ? 0 : setTimeout(ask, ms);
}

// listen has one stream per tab; while it's open nothing is planned.
function listen() {
  stream?.close();
  stream = new EventSource(here);
  stream.onopen = () => clearTimeout(timer);
  stream.addEventListener("changed", ask);
  stream.onerror = () => plan(pause);
}

function rest() {
  clearTimeout(timer);
  stream?.close();
  stream = null;
}

async function ask() {
  clearTimeout(timer);
  try {
    const answer = await fetch(here, { headers: { Accept: "text/html" }, cache: "no-store" });
    if (answer.redirected) {
      location.reload(); // the session is over
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    show(page.getElementById("content"));
  } catch {
    live.textContent = live.dataset.lost;
    pause = Math.min(pause * 2, longest);
    plan(pause);
  }
}

function show(next) {
  if (!next) throw new Error("no content");
  const said = content.querySelector("[data-say]")?.textContent;
  const news = next.querySelector("[data-say]")?.textContent;
  const waits = next.dataset.wait;
  if (next.innerHTML !== content.innerHTML && !(waits && content.contains(document.activeElement))) {
    content.replaceWith(next); // the end is worth more than the focus
    content = next;
  }
  live.textContent = news !== said ? news ?? "" : "";
  if (!waits) {
    rest();
    return;
  }
  pause = first;
  if (stream?.readyState !== EventSource.OPEN) plan(pause);
}

document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
if (!document.hidden) listen();
plan(pause);
