// Asks for a waiting page again until it has come to its end. Only what waits is
// changed, so that focus and scrolling stay; a hidden tab asks nothing. When the
// page can't be had it says so, and asks less and less often.
const longest = 30000;

let content = document.getElementById("content");
const live = document.getElementById("live");
let pause = Number(content.dataset.wait);
let timer = 0;

function plan(ms) {
  clearTimeout(timer);
  timer = document.hidden ? 0 : setTimeout(ask, ms);
}

async function ask() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
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
  if (next.innerHTML !== content.innerHTML && !content.contains(document.activeElement)) {
    content.replaceWith(next);
    content = next;
  }
  live.textContent = news !== said ? news ?? "" : "";
  if (!next.dataset.wait) {
    if (content !== next) location.reload(); // the focus was in it: the end is worth more
    return;
  }
  pause = Number(next.dataset.wait);
  plan(pause);
}

document.addEventListener("visibilitychange", () => plan(0));
plan(pause);
