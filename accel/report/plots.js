"use strict";
// Unpacks the plot library that this file carries, then draws every figure and keeps it in the page's colours.
(async () => {
  const hosts = [...document.querySelectorAll(".plot")];
  if (!hosts.length) return;
  const variable = /^var\((--[\w-]+)\)$/;
  const coloured = (value) => {
    if (typeof value === "string") {
      const found = value.match(variable);
      return found ? getComputedStyle(document.documentElement).getPropertyValue(found[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map(coloured);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, coloured(inner)]));
    }
    return value;
  };
  try {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent.trim()), (c) => c.charCodeAt(0));
    const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script);
    const draw = () => hosts.forEach((host) => {
      const figure = coloured(JSON.parse(document.getElementById(host.dataset.figure).textContent));
      if (host.clientWidth < 440 && figure.layout.annotations) {
        figure.layout.annotations = [];  // labels would cover each other: a legend says the same
        figure.layout.showlegend = true;
        figure.layout.height += 24 * Math.ceil(figure.data.length / 2);
      }
      Plotly.react(host, figure.data, figure.layout, { responsive: true, displayModeBar: false });
    });
    draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  } catch (error) {
    hosts.forEach((host) => { host.textContent = "This browser cannot draw the plot; the table above holds its figures."; });
    throw error;
  }
})();
