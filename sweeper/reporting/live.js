"use strict";
/* Keeps a server's page up to date: what the journal says is put in as it comes; a newer report is offered. */

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";

document.addEventListener("DOMContentLoaded", () => {
  const live = document.getElementById("live");
  const news = document.getElementById("news");
  if (!live || !news) return;
  let source = null;

  function put(event) {
    const at = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    live.innerHTML = event.data;
    if (at) live.querySelector(`[href="${CSS.escape(at)}"]`)?.focus();
    if (news.textContent.startsWith("Connection")) news.textContent = "";
  }

  /* Nobody loses their place: the page is loaded again by itself only where its reader is at the top. */
  function offer(event) {
    if (event.data === live.dataset.report) return;
    if (scrollY < 200 && !document.querySelector("dialog[open]")) {
      location.reload();
      return;
    }
    const button = document.createElement("button");
    button.textContent = "Show the newer report";
    button.addEventListener("click", () => location.reload());
    news.replaceChildren(button);
  }

  function listen() {
    source = new EventSource("events");
    source.addEventListener("part", put);
    source.addEventListener("report", offer);
    source.addEventListener("error", () => { news.textContent = "Connection lost: trying again"; });
  }

  /* A browser has six connections to a server: tabs that nobody sees must not take them. */
  document.addEventListener("visibilitychange", () => {
    source?.close();
    if (!document.hidden) listen();
  });
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
  if (!document.hidden) listen();
});
