// Keeps a page up to date: fetches it again, and replaces its part "singlejob-live". If there is nothing left to keep up
// to date, because a run is over, it loads the whole page once more.
"use strict";

{
    const PATIENCE = 10000;

    const page = document.getElementById("singlejob-refresh");
    const live = document.getElementById("singlejob-live");
    const updated = document.getElementById("singlejob-updated");
    const outdated = document.getElementById("singlejob-outdated");
    const announced = document.getElementById("singlejob-announced");
    const button = document.getElementById("singlejob-pause");

    let isPaused = false;
    let isFetching = false;
    let timer;

    function start() {
        button.hidden = false;
        button.addEventListener("click", pauseOrResume);
        document.addEventListener("visibilitychange", refresh);
        window.addEventListener("pageshow", (event) => event.persisted && refresh());
        wait();
    }

    function wait() {
        clearTimeout(timer);
        timer = setTimeout(refresh, page.dataset.seconds * 1000);
    }

    function pauseOrResume() {
        isPaused = !isPaused;
        button.setAttribute("aria-pressed", String(isPaused));
        showTime();
        refresh();
    }

    // A hidden tab does not refresh until somebody looks at it.
    async function refresh() {
        if (isPaused || isFetching || document.hidden) {
            return;
        }
        isFetching = true;
        try {
            const fresh = isSelecting() ? null : await fetchPage();
            if (fresh && !isPaused && !isSelecting()) {
                show(fresh);
            }
        } catch {
            warn();
        }
        isFetching = false;
        wait();
    }

    // Somebody is about to copy a text that a refresh would replace.
    function isSelecting() {
        const selection = window.getSelection();
        return !selection.isCollapsed && live.contains(selection.anchorNode);
    }

    async function fetchPage() {
        const signal = AbortSignal.timeout(PATIENCE);
        const options = { cache: "no-store", credentials: "same-origin", headers: { "Singlejob-Refresh": "1" }, signal };
        const response = await fetch(window.location.href, options);
        const parsed = new DOMParser().parseFromString(await response.text(), "text/html");
        const fresh = parsed.getElementById("singlejob-live");
        if (!response.ok || !fresh) {
            throw new Error("The response is not this page: is the session over?");
        }
        return document.adoptNode(fresh);
    }

    function show(fresh) {
        if ("over" in fresh.dataset) {
            window.location.reload();
            return;
        }
        const before = headline();
        const giveFocus = rememberFocus();
        live.dataset.at = fresh.dataset.at;
        live.replaceChildren(...fresh.childNodes);
        giveFocus();
        outdated.hidden = true;
        showTime();
        // A screen reader reads only the headline aloud, and only if it has changed. The whole page would be too much.
        if (headline() !== before) {
            announced.textContent = headline();
        }
    }

    function headline() {
        return document.getElementById("singlejob-headline").textContent;
    }

    // A refresh replaces the focused link or button. Focus its successor: of the links to the same URL, or the buttons
    // of the same name, the one at its position.
    function rememberFocus() {
        const focused = document.activeElement;
        if (focused === live || !live.contains(focused)) {
            return () => {};
        }
        const wanted = target(focused);
        const position = ways(wanted).indexOf(focused);
        return () => {
            const found = ways(wanted);
            (found[position] ?? found[0] ?? live).focus({ preventScroll: true });
        };
    }

    function ways(wanted) {
        return [...live.querySelectorAll("a, button")].filter((way) => target(way) === wanted);
    }

    function target(way) {
        return way.getAttribute("href") ?? way.getAttribute("aria-label");
    }

    function showTime() {
        updated.textContent = inWords(isPaused ? "paused" : "updated");
    }

    function warn() {
        if (outdated.hidden) {
            outdated.textContent = inWords("stale");
            outdated.hidden = false;
        }
    }

    function inWords(key) {
        return page.dataset[key].replace("{time}", () => live.dataset.at);
    }

    start();
}
