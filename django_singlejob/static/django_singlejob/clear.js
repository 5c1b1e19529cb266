// Counts down until a stale lock can be cleared. The server decides: this spares users a click that it would refuse.
"use strict";

{
    const form = document.getElementById("singlejob-clear");
    const watches = [...form.querySelectorAll("[data-left]")];
    const boxes = [...form.querySelectorAll("input[name=force]")];
    const announced = document.getElementById("singlejob-announced");
    const soonest = document.getElementById("singlejob-soonest");
    const button = form.querySelector("input[type=submit]");
    const unwatched = form.querySelectorAll("input[name=lock]").length - watches.length - boxes.length;

    // Not the start of the page, which was before the server looked at the locks. This clock never steps.
    const shownAt = performance.now();

    let timer;
    let overBefore = 0;

    function start() {
        document.addEventListener("visibilitychange", show);
        window.addEventListener("pageshow", show);
        boxes.forEach((box) => box.addEventListener("change", show));
        show();
    }

    function show() {
        clearTimeout(timer);
        watches.forEach(showTime);
        const over = watches.filter(isOver).length;
        button.disabled = !(over || unwatched || boxes.some((box) => box.checked));
        soonest.hidden = !button.disabled;
        write(soonest, waiting(soonest, Math.min(...watches.map(left))));
        // A screen reader reads the end of a watch aloud, but not each second.
        if (over > overBefore) {
            announced.textContent = form.dataset.announced;
        }
        overBefore = over;
        if (over < watches.length) {
            timer = setTimeout(show, untilNextSecond());
        }
    }

    function showTime(watch) {
        write(watch, isOver(watch) ? form.dataset.ready : waiting(form, left(watch)));
    }

    function write(element, text) {
        if (element.textContent !== text) {
            element.textContent = text;
        }
    }

    function waiting(element, milliseconds) {
        return element.dataset.waiting.replace("{time}", inWords(Math.ceil(milliseconds / 1000)));
    }

    // In milliseconds.
    function left(watch) {
        return Math.max(0, Number(watch.dataset.left) * 1000 - (performance.now() - shownAt));
    }

    function isOver(watch) {
        return left(watch) === 0;
    }

    function untilNextSecond() {
        return Math.min(...watches.filter((watch) => !isOver(watch)).map((watch) => (left(watch) % 1000) + 1));
    }

    function inWords(seconds) {
        const minutes = Math.floor(seconds / 60);
        const words = minutes >= 60 ? form.dataset.hours : minutes ? form.dataset.minutes : form.dataset.seconds;
        return words
            .replace("{hours}", Math.floor(minutes / 60))
            .replace("{minutes}", minutes % 60)
            .replace("{seconds}", seconds % 60);
    }

    if (button && watches.length) {
        start();
    }
}
